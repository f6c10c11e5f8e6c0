"""The documentation site: what it is made from, and, where the extra `docs` is installed, that it builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from prestep import cli
from prestep.sim import api
from tests.browser import Page
from tests.pages import PAGES, ROOT, blocks, name_of

DOCS = ROOT / "docs"
WRITTEN = [page for page in PAGES if DOCS in page.parents]
NEEDS = ("sphinx", "myst_parser", "furo", "sphinx_copybutton")
missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
site = pytest.mark.skipif(
    bool(missing),
    reason=f"needs the extra docs (pip install -e '.[docs]'): no {', '.join(missing)}",
)


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """docs/made.py."""
    spec = importlib.util.spec_from_file_location("made", DOCS / "made.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site."""
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        out / "trees",
        DOCS,
        out / "html",
    ]
    built = subprocess.run(
        [*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0 and not built.stderr, built.stderr[-3000:]
    return out / "html"


def test_every_page_is_in_the_index() -> None:
    """A page that no table of contents has is one that nobody finds."""
    trees = [
        block.text
        for block in blocks(DOCS / "index.md")
        if block.language == "{toctree}"
    ]
    listed = [
        line
        for tree in trees
        for line in tree.split("\n")
        if re.fullmatch(r"[\w/-]+", line)
    ]
    written = {
        page.relative_to(DOCS).with_suffix("").as_posix() for page in WRITTEN
    } - {"index"}
    assert len(listed) == len(set(listed))
    assert written == {name for name in listed if not name.startswith("made/")}


def test_no_page_takes_a_name_of_the_site() -> None:
    """Sphinx writes these files itself."""
    assert not {page.stem for page in WRITTEN if page.parent == DOCS} & {
        "search",
        "genindex",
        "py-modindex",
    }


def test_the_page_of_commands_has_all_of_them(made: ModuleType) -> None:
    """Each with its options and an example, those of groups too."""
    text = made.pages(ROOT)["commands.md"]
    sections = dict(
        re.findall(
            r"^## (prestep [^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
        )
    )
    for path, command in below(cli.main, "prestep"):
        assert "```sh\n" in sections[path], path
        for param in command.params:
            if isinstance(param, click.Option):
                assert f"`{max(param.opts, key=len)}" in sections[path], (
                    f"{path} {param.opts}"
                )


def below(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from below(command, f"{path} {name}")


def test_the_page_of_python_has_every_function(made: ModuleType) -> None:
    """The dozen names of `prestep.sim.api`, each with a docstring."""
    functions = {
        name for name in api.__all__ if not isinstance(getattr(api, name), type)
    }
    assert set(made.functions()) == functions and all(
        getattr(api, name).__doc__ for name in functions
    )
    assert all(
        f".. autofunction:: {name}\n" in made.pages(ROOT)["api.md"]
        for name in functions
    )


def test_the_page_of_examples_has_every_file(made: ModuleType) -> None:
    """In full, under its name; those of the distribution of plug-ins are on the page about extending."""
    text = made.pages(ROOT)["examples.md"]
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        assert "plugins" in path.parts or (
            f"### {path.relative_to(ROOT / 'examples')}\n" in text
            and path.read_text(encoding="utf-8") in text
        )


def test_agents_are_told_of_every_page(made: ModuleType) -> None:
    """`llms.txt` has a heading, a summary, and each page of the index with its title and a sentence."""
    made.write(ROOT, DOCS)
    text = made.llms(DOCS)
    assert re.match(r"# prestep\n\n> \w", text)
    links = re.findall(r"^- \[(.+)\]\((.+)\.md\): (.+)$", text, re.MULTILINE)
    assert [name for _, name, _ in links] == made.listed(DOCS)[1:]
    assert {page.stem for page in WRITTEN} <= {
        Path(name).name for name in made.listed(DOCS)
    }
    for title, name, _ in links:
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {title}\n"), name


def test_the_markdown_of_every_page_lies_beside_it(
    made: ModuleType, tmp_path: Path
) -> None:
    """As it is, so that its links lead from Markdown to Markdown."""
    made.write(ROOT, DOCS)
    made.write_for_agents(DOCS, tmp_path)
    for page in WRITTEN:
        copied = tmp_path / page.relative_to(DOCS)
        assert copied.read_bytes() == page.read_bytes()
    assert (tmp_path / "made" / "agents.md").is_file()


@site
@pytest.mark.slow
def test_it_builds_without_a_warning(html: Path) -> None:
    """Every page is there, and the search page is Sphinx's own."""
    for page in WRITTEN:
        assert (html / page.relative_to(DOCS).with_suffix(".html")).is_file(), name_of(
            page
        )
        assert (html / page.relative_to(DOCS)).is_file(), name_of(page)
    assert (html / "llms.txt").is_file()
    assert "searchindex" in (html / "search.html").read_text(encoding="utf-8")


@site
@pytest.mark.slow
def test_its_links_lead_somewhere(html: Path) -> None:
    """Files and anchors exist; nothing is fetched from elsewhere, so it can be read offline."""
    texts = {path: path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    ids = {
        path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()
    }
    for path, text in texts.items():
        assert not re.search(r'<(script|link|img)[^>]*(src|href)="https?://', text), (
            path
        )
        for target, anchor in re.findall(
            r'href="(?!https?://|mailto:)([^"#?]*)[^"#]*#?([^"]*)"', text
        ):
            at = (path.parent / target).resolve() if target else path
            assert at.exists(), f"{path.name} -> {target}"
            assert not anchor or at not in ids or anchor in ids[at], (
                f"{path.name} -> {target}#{anchor}"
            )


@site
@pytest.mark.slow
@pytest.mark.parametrize("wide", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_readable(
    html: Path, browser_page: Page, wide: int, theme: str
) -> None:
    """On a phone and on a screen, in light and in dark: no text on another or hard to tell from its ground, no error."""
    looks = (ROOT / "tests" / "looks.js").read_text(encoding="utf-8")
    for name in ("index", "tutorial", "scoreboard", "made/contributing"):
        browser_page.open(f"file://{html / name}.html", wide, theme=theme)
        high = browser_page.value("document.documentElement.scrollHeight")
        browser_page.resize(wide, min(high, 12_000))
        seen = browser_page.value(looks)
        assert seen["looked"] > 50 and seen["over"] <= 0, name
        assert not [*seen["overlaps"], *seen["faint"], *seen["cut"]], name
        assert not browser_page.complaints, name
