"""What TOML files of constants (GPUs, frameworks, others) may say: types, ranges and keys; a mistake says its place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, did_you_mean

GRADES = ("measured", "fitted", "datasheet", "guess")


# Schemas are tuples with names, as frozen dataclasses take four times as long to define, at every command's start.
class Schema(Protocol):
    """Finds what is wrong with the value of a key."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]: ...


class Number(NamedTuple):
    """A finite number, at least `low`, or above it, and at most `high`; a whole one."""

    low: float = 0.0
    above: bool = False
    whole: bool = False
    high: float = math.inf

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not self._fits(value):
            kind = "a whole number" if self.whole else "a number"
            bound = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
            if self.high < math.inf:
                bound += f", at most {self.high:g}"
            yield Mistake(where, key, repr(value)[:60], f"{kind} {bound}")

    def _fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(
            value, int if self.whole else int | float
        ):
            return False
        within = value > self.low if self.above else value >= self.low
        # A whole number of JSON may be larger than any float.
        return within and value <= self.high and abs(value) <= sys.float_info.max


class Text(NamedTuple):
    """A text; one of `choices` where there are any."""

    choices: tuple[str, ...] = ()

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not isinstance(value, str) or not value:
            yield Mistake(where, key, repr(value)[:60], "a text")
        elif self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices)
            yield Mistake(
                where, key, f'"{value}"', f"one of {', '.join(self.choices)}", hint
            )


class Switch:
    """True or false."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not isinstance(value, bool):
            yield Mistake(where, key, repr(value)[:60], "true or false")


class Items(NamedTuple):
    """A list of such values, so many where `length` says it."""

    item: Schema
    length: int = 0

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if (
            not isinstance(value, list)
            or not value
            or (self.length and len(value) != self.length)
        ):
            yield Mistake(
                where,
                key,
                repr(value)[:60],
                f"a list of {self.length or 'some'} values",
            )
            return
        for at, item in enumerate(value):
            yield from self.item.mistakes(where, f"{key}[{at}]", item)


class Table(NamedTuple):
    """A table with these keys, of which some are needed."""

    keys: Mapping[str, Schema]
    needed: Collection[str] = ()

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not isinstance(value, Mapping):
            yield Mistake(where, key, repr(value)[:60], "a table")
            return
        prefix = f"{key}." if key else ""
        for name, entry in value.items():
            if name in self.keys:
                yield from self.keys[name].mistakes(where, prefix + name, entry)
            else:
                hint = did_you_mean(name, self.keys) or f"keys: {', '.join(self.keys)}"
                yield Mistake(
                    where,
                    prefix + name,
                    "an unknown key",
                    f"a key of [{key}]" if key else "a key",
                    hint,
                )
        for name in self.needed:
            if name not in value:
                yield Mistake(where, prefix + name, "nothing", "a value")


class Anything:
    """What somebody else checks."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        yield from ()


class Written(NamedTuple):
    """A quantity above 0 with its unit ("2 min"), as one of the parsers of `prestep.sim.units` reads it."""

    parse: Callable[[object, str, str], float]

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        try:
            number = self.parse(value, where, key)
        except InputError as error:
            yield from error.mistakes
            return
        yield from Number(above=True).mistakes(where, key, number)


class Named(NamedTuple):
    """A table with any names, of values that are all alike."""

    item: Schema

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not isinstance(value, Mapping):
            yield Mistake(where, key, repr(value)[:60], "a table")
            return
        prefix = f"{key}." if key else ""
        for name, entry in value.items():
            yield from self.item.mistakes(where, f"{prefix}{name}", entry)


def all_of(names: Collection[str], item: Schema) -> Table:
    """A table that has all of these keys, with values that are all alike."""
    return Table(dict.fromkeys(names, item), names)


def sourced(value: Schema) -> Table:
    """`{ value = ..., evidence = ..., source = ... }`."""
    keys = {"value": value, "evidence": Text(GRADES), "source": Text()}
    return Table(keys, tuple(keys))


def numbers_of(cls: type) -> Table:
    """A table of the numbers that a dataclass holds; those without a default are needed."""
    needed = [entry.name for entry in fields(cls) if entry.default is MISSING]
    return Table({entry.name: Number() for entry in fields(cls)}, needed)


def rows(path: Path, row: Table) -> dict[str, dict[str, Any]]:
    """The tables of a file by name, each with the keys of a row.

    Raises
    ------
    InputError
        With every mistake in it, or why it is no TOML.
    """
    return read(path, Named(row))


def read(
    path: Path, schema: Schema, expected: str = "a file in TOML"
) -> dict[str, Any]:
    """The table of a file; `expected`: what it should be, for who named another.

    Raises
    ------
    InputError
        With every mistake in it, or why it is no TOML.
    """
    try:
        table = files.toml(files.written_text(path))
    except FileNotFoundError:
        raise InputError.of(str(path), "", "no such file", expected) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError.of(str(path), "", why, expected) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError.of(str(path), "", str(error), expected) from None
    InputError.check([*schema.mistakes(str(path), "", table)])
    return table
