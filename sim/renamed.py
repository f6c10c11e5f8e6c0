"""Keys that have another name now: the old one still works, and says what to write instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field
from typing import Any, NamedTuple

from prestep.sim.errors import Mistake


class Renamed(FutureWarning):
    """A key was read under a name that it no longer has."""


class Keys(NamedTuple):
    """The keys of a section under the names that they have now, and what is wrong with the old ones.

    Attributes
    ----------
    values : mapping
        Name -> value.
    said : mapping
        Name -> the name in the file, which mistakes and `--set` know.
    """

    values: Mapping[str, Any]
    said: Mapping[str, str]
    mistakes: tuple[Mistake, ...]


def current(
    mapping: Mapping[str, Any],
    entries: Mapping[str, Field[Any]],
    where: str,
    section: str,
) -> Keys:
    """A section's keys by the names of its fields; every old name is a warning, and one beside the new is a mistake."""
    new = {old: name for name, one in entries.items() for old in one.metadata["was"]}
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for key, value in mapping.items():
        name = new.get(key, key)
        old, now = _dotted(section, key), _dotted(section, name)
        if name != key and name in mapping:
            expected = f"one of them: {key} is called {name} now"
            mistakes.append(Mistake(where, old, f"{now} beside it", expected))
            continue
        if name != key:
            text = f"{where}: {old} is called {now} now; the old name will go"
            warnings.warn(Renamed(text), stacklevel=3)
        values[name], said[name] = value, key
    return Keys(values, said, tuple(mistakes))


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile such warnings are lines for a reader; other warnings are shown as ever."""
    shown = warnings.showwarning

    def show(message: Warning | str, *about: Any, **more: Any) -> None:
        if isinstance(message, Renamed):
            tell(str(message))
        else:
            shown(message, *about, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown
