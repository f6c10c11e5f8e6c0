"""The errors people see: where, what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PARTS = re.compile("[-_./ ]")
_FITTED = "time it with nccl-tests, and give the log to `prestep calibrate`, whose constants --nccl-constants takes"
_SHOTS = "--backend one_shot and two_shot are the all-reduces of MSCCL++, vLLM and TensorRT-LLM in a host"
_TUNER = "Amazon's tuner is nccl.tuner; what others choose (NCCL_DEBUG_SUBSYS=TUNING prints it) can be algo and proto"
#: Names of what people ask for and prestep does not model, by the letters alone, with what to do.
ADVICE = {
    "rccl": "RCCL runs by itself where the cluster's GPUs are AMD's (mi300x, mi355x, rail-mi300x): leave nccl",
    "msccl": f"MSCCL is not modelled: {_FITTED}",
    **dict.fromkeys(
        ("mscclpp", "oneshot", "twoshot"),
        f"{_SHOTS}; others are not modelled: {_FITTED}",
    ),
    **dict.fromkeys(("ncclx", "ctran"), f"NCCLX is not modelled: {_FITTED}"),
    **dict.fromkeys(("tunerplugin", "tunerconfigfile"), _TUNER),
}

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

    @classmethod
    def of(
        cls, where: str, key: str, found: str, expected: str, hint: str = ""
    ) -> InputError:
        """The error of a single mistake.

        Examples
        --------
        >>> print(InputError.of("job.toml", "parallel.tp", "3", "a divisor of 8"))
        job.toml: parallel.tp: found 3, expected a divisor of 8
        """
        return cls(Mistake(where, key, found, expected, hint))

    @classmethod
    def check(cls, mistakes: Iterable[Mistake]) -> None:
        """Raises the error of all mistakes, if there are any."""
        if found := tuple(mistakes):
            raise cls(found)

    @classmethod
    @contextmanager
    def collected(cls, mistakes: list[Mistake]) -> Iterator[None]:
        """Adds the mistakes of an error that is raised within to others, and goes on behind.

        Examples
        --------
        >>> mistakes: list[Mistake] = []
        >>> with InputError.collected(mistakes):
        ...     raise InputError.of("job.toml", "parallel.tp", "3", "a divisor of 8")
        >>> len(mistakes)
        1
        """
        try:
            yield
        except InputError as error:
            mistakes += error.mistakes

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


#: Suggestions that a reader can weigh, and names that he reads through.
MOST_SUGGESTIONS, MOST_NAMES = 3, 16


def advice(name: str) -> str:
    """What to do about something that is not modelled; empty for any other name.

    Examples
    --------
    >>> advice("RCCL").startswith("RCCL runs by itself")
    True
    """
    return ADVICE.get(re.sub(r"[^a-z]", "", name.lower()), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "bandwidth"?` when known words are close to `word`, or what to do about what is not modelled."""
    if told := advice(word):
        return told
    close = [f'"{name}"' for name in _suggestions(word, known)]
    if not close:
        return ""
    *first, last = close
    return (
        f"did you mean {', '.join(first)} or {last}?"
        if first
        else f"did you mean {last}?"
    )


def _suggestions(word: str, known: Iterable[str]) -> list[str]:
    """Names with the word as a part, the shortest first ("dgx-h100" for "h100"); else the one that is spelt like it."""
    spelt = {name.lower(): name for name in sorted(map(str, known))}
    lower = word.lower()
    whole = [name for name in spelt if lower in _PARTS.split(name)]
    if whole:
        nearest = sorted(whole, key=lambda name: (len(name), name))[:MOST_SUGGESTIONS]
    else:
        nearest = difflib.get_close_matches(lower, list(spelt), n=1, cutoff=0.6)
    return [spelt[name] for name in nearest]


def choices(names: Iterable[str]) -> str:
    """Names to choose from, for a sentence: all of them, or how many where nobody would read them."""
    listed = list(names)
    if len(listed) > MOST_NAMES:
        return f"{len(listed)} names"
    return ", ".join(listed) if listed else "nothing (none exist)"


def unknown(
    where: str,
    key: str,
    found: str,
    known: Iterable[str],
    what: str = "one of",
    show: str = "",
) -> Mistake:
    """The mistake of naming something that does not exist; lists what does, or names the command that does (`show`)."""
    names = sorted(known)
    hints = [did_you_mean(found, names)]
    if show and len(names) > MOST_NAMES:
        hints.append(f"`{show}` shows all")
    hint = " ".join(filter(None, hints))
    return Mistake(where, key, f'"{found}"', f"{what} {choices(names)}", hint)
