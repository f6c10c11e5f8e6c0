"""The errors people see: where, what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_INPUT = 2  # exit code of a command that can not do what it was asked


class PrestepError(Exception):
    """Any failure that prestep can explain; the command line prints it without a traceback.

    `code` is the exit code of the command.
    """

    code: int = EXIT_INPUT


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with the input.

    `where` is the file (or "--set", "command line"), `key` the dotted key in it.
    """

    where: str
    key: str
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        tail = f" ({self.hint})" if self.hint else ""
        return f"{place}: found {self.found}, expected {self.expected}{tail}"


class InputError(PrestepError):
    """Wrong input: every mistake that was found, not only the first."""

    def __init__(self, mistakes: Iterable[Mistake] | Mistake) -> None:
        self.mistakes: tuple[Mistake, ...] = (
            (mistakes,) if isinstance(mistakes, Mistake) else tuple(mistakes)
        )
        super().__init__("\n".join(map(str, self.mistakes)))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Mistake, ...]]]:
        # Worker processes send errors by pickle; Exception's own way would hand the text to __init__.
        return type(self), (self.mistakes,)


class ProgramFailed(InputError):
    """A program that prestep ran ended with an exit code of its own, which the command passes on."""

    def __init__(self, mistakes: Iterable[Mistake] | Mistake, code: int) -> None:
        super().__init__(mistakes)
        self.code = code

    def __reduce__(self) -> tuple[type[ProgramFailed], tuple[tuple[Mistake, ...], int]]:  # type: ignore[override]
        return type(self), (self.mistakes, self.code)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "bandwidth"?` when a known word is close to `word`, else an empty string."""
    spelt = {name.lower(): name for name in sorted(map(str, known))}
    close = difflib.get_close_matches(word.lower(), list(spelt), n=1, cutoff=0.6)
    return f'did you mean "{spelt[close[0]]}"?' if close else ""


def unknown(
    where: str, key: str, found: str, known: Iterable[str], what: str = "one of"
) -> Mistake:
    """The mistake of naming something that does not exist; lists what does."""
    names = sorted(known)
    listed = ", ".join(names) if names else "nothing (none exist)"
    return Mistake(
        where, key, f'"{found}"', f"{what} {listed}", did_you_mean(found, names)
    )
