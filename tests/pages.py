"""The blocks of README, docs/ and examples/, and what the pages say about running them.

A comment on the line above a fence says what is special about a block:

=====================  ====================================================================
``not run: REASON``    it cannot run here; tests count these
``file: NAME``         it is saved under this name, for the commands after it
``exit CODE``          its commands end with this code instead of 0
``printed``            the command before it prints these lines, figures aside; "..." skips some
=====================  ====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prestep import cli

ROOT = Path(cli.__file__).parent
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "AGENTS.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "examples/README.md",
        )
    ),
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if not {"made", "_build"} & set(page.parts)
    ),
]
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>[^\n]*) -->\n(?P=indent))?```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its language, its text without indentation, its mark."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""

    @property
    def not_run(self) -> bool:
        return self.mark.startswith("not run: ")

    @property
    def file(self) -> str:
        return (
            self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""
        )

    @property
    def exit_code(self) -> int:
        return (
            int(self.mark.removeprefix("exit ")) if self.mark.startswith("exit ") else 0
        )

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of shell, without what is said about them."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [
            bare
            for line in lines
            if (bare := re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("$ "))
        ]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        inside = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(
            name_of(page),
            line,
            found["language"].strip(),
            inside,
            (found["mark"] or "").strip(),
        )
