"""The documentation site: `make docs` writes it to docs/_build/html.

Pages are the Markdown files of this folder, readable as they are. Made while building: the reference of commands (from
click), of the Python interface (from docstrings), and the page of examples (from examples/).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import made  # noqa: E402

from prestep.sim import __version__  # noqa: E402

project, author, release = "prestep", "The prestep authors", __version__
project_copyright = "The prestep authors, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 4
highlight_language = "none"  # a block without a language is plain text
smartquotes = False  # "--set" stays what it is
default_role = "literal"  # single backticks of docstrings
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 90
napoleon_google_docstring = False

html_theme = "furo"
html_title = f"prestep {release}"
html_static_path = ["_static"]
html_css_files = ["prestep.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "monokai"

#: Links of the pages to files that are not pages of the site, and the page that shows them there.
ELSEWHERE = {
    "../examples/README.md": "made/examples.md",
    "../../examples/README.md": "../made/examples.md",
    "../AGENTS.md": "made/agents.md",
    "../CHANGELOG.md": "made/changelog.md",
    "../CONTRIBUTING.md": "made/contributing.md",
    "../README.md": "index.md",
}


def _mended(_app: object, _page: str, source: list[str]) -> None:
    """Links, and figures in tables that stay on one line with their unit."""
    unit = re.compile(r"(?<=\d) (?=(%|ms|us|s|[GMK]i?B|GB/s)\b|%)")
    rows = source[0].split("\n")
    source[0] = "\n".join(
        unit.sub("\u00a0", row) if "|" in row and "`" not in row else row
        for row in rows
    )
    for target, page in ELSEWHERE.items():
        source[0] = re.sub(
            rf"\]\({re.escape(target)}(#[^)]*)?\)", rf"]({page})", source[0]
        )


def _for_agents(app: Any, error: Exception | None) -> None:
    """`llms.txt`, and the Markdown of every page beside it, where a site was written."""
    if error is None and app.builder.format == "html":
        made.write_for_agents(Path(__file__).parent, Path(app.outdir))


def setup(app: Any) -> None:
    """Writes the generated pages, mends links that leave docs/, and adds what agents read."""
    made.write(ROOT, Path(__file__).parent)
    app.connect("source-read", _mended)
    app.connect("build-finished", _for_agents)
