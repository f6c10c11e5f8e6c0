"""Variables put into texts, within bounds: values that use each other grow beyond any memory, line after line."""

from __future__ import annotations

import re
from collections.abc import Callable

#: Letters of a value, with variables put in.
LONGEST = 100_000
#: Letters of all values of a script, or of a whole script, with variables put in.
ALTOGETHER = 2**20
EXPECTED = f"values of at most {LONGEST} letters, {ALTOGETHER} together"


def substituted(
    pattern: re.Pattern[str],
    put_in: Callable[[re.Match[str]], str],
    text: str,
    most: int = LONGEST,
) -> str:
    """A text with what `put_in` finds in place of every match.

    Raises
    ------
    ValueError
        If more than `most` letters would be put in.
    """
    size = sum(len(put_in(found)) for found in pattern.finditer(text))
    if size > most:
        raise ValueError(f"variables that make a value of {size} letters")
    return pattern.sub(put_in, text)


class Bounded(dict[str, str]):
    """Values by name, of `ALTOGETHER` letters at most.

    Raises
    ------
    ValueError
        When one is set that makes them more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.letters = 0

    def __setitem__(self, name: str, value: str) -> None:
        self.letters += len(value) - len(self.get(name, ""))
        if self.letters > ALTOGETHER:
            raise ValueError(f"variables that make {self.letters} letters together")
        super().__setitem__(name, value)
