"""Pages for people: what goes to a terminal fits it, files and pipes get lines whole."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import IO

import click

STEP = 2  # columns by which the rest of a line is further in than its beginning


def show_page(text: str) -> None:
    """Print a page on stdout."""
    click.echo(fitting(text, sys.stdout))


def fitting(text: str, stream: IO[str]) -> str:
    """A text for a stream: folded where that is a terminal."""
    if not stream.isatty():
        return text
    return folded(text, shutil.get_terminal_size().columns)


def folded(text: str, columns: int) -> str:
    """A text with no line longer than so many columns; what has no space to break at stays whole."""
    return "\n".join(
        part for line in text.split("\n") for part in _parts(line, columns)
    )


def _parts(line: str, columns: int) -> Iterator[str]:
    if len(line) <= columns or "\x1b" in line:  # who colours a line has fitted it
        yield line
    elif not line.strip("- ."):  # a rule
        yield line[:columns]
    else:
        start = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(
            line,
            columns,
            subsequent_indent=start + " " * STEP,
            break_long_words=False,
            break_on_hyphens=False,
        )
