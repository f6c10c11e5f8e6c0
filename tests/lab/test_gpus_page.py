"""The page of what predictions of each GPU rest on."""

from __future__ import annotations

from pathlib import Path

from lab.report import gpus
from prestep import cli

PAGE = Path(cli.__file__).parent / "docs" / "gpus.md"


def test_the_page_is_what_the_command_writes() -> None:
    """Tables of the page are those of this tree's GPUs."""
    text = PAGE.read_text(encoding="utf-8")
    assert gpus.written(text) == text
