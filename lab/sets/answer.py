"""A number that rests on constants of prestep."""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """What was asked, the kind of question, and the answer: mostly s, else a share or a factor."""

    name: str
    slice: str
    value: float
