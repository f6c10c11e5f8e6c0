"""Tables for people, which pages, Markdown and terminals write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sheet(NamedTuple):
    """A table with its title; the first `texts` columns are words, the others numbers. `notes` stand below it.

    `bars` are of a terminal: a share, or a text, behind every row.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    notes: Sequence[str] = ()
    bars: Sequence[float | str] = ()
