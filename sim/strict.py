"""Turns a TOML table into a frozen dataclass and reports every mistake, not only the first.

The dataclass is the grammar: its field names are the keys, its types the types, and the metadata made by `key` the
limits, units and meaning. The JSON Schema comes from the same fields (`prestep.sim.spec.grammar`), so the two cannot
disagree.
"""

from __future__ import annotations

import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from prestep.sim import renamed, units
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.extras import lazily
from prestep.sim.tools import catalog

with lazily():
    from prestep.sim import words

T = TypeVar("T")
LARGEST = 1e24  # of any number: products of a few are finite

_PARSERS: dict[str, Callable[[object, str, str], float]] = {
    "bytes": units.parse_bytes,
    "bandwidth": units.parse_bandwidth,
    "duration": units.parse_duration,
}


class Range(NamedTuple):
    """Bounds of a kind of number, both inclusive; None: there is none."""

    low: float | None = None
    most: float | None = None


UNBOUNDED = Range()


def key(
    default: Any,
    doc: str,
    within: Range = UNBOUNDED,
    unit: str = "",
    low: float | None = None,
    above: float | None = None,
    most: float | None = None,
    names: str = "",
    was: tuple[str, ...] = (),
    of: str = "",
    wants: str | None = "",
    parts: str = "",
) -> Any:
    """A key of a section: default, meaning, unit ("bytes", "bandwidth", "duration"), and bounds, `above` exclusive.

    Bounds are those of `within`, where `low` and `most` say nothing else.

    `names` is a kind of `prestep.sim.tools.catalog`: the key takes the names that there are, so that a new file is a
    new value. `was` are names that the key had: files with them are read, with a warning (`prestep.sim.renamed`).
    `of`: families of frameworks that read it, where they are not its section's (`prestep.workloads.frameworks`).
    `wants`: what there has to be for it to count (`prestep.sim.spec.rules.idle`), joined by "; "; None: that is found
    out otherwise. `parts`: what it is a choice of ("fsdp"), which a step may do without; see `keys_of`.
    """
    metadata = {
        "doc": doc,
        "unit": unit,
        "low": within.low if low is None else low,
        "above": above,
        "most": within.most if most is None else most,
        "names": names,
        "was": was,
        "of": of,
        "wants": wants,
        "parts": parts.split(),
    }
    return field(default=default, metadata=metadata)


def keys_of(section: type, part: str) -> tuple[str, ...]:
    """Returns the keys of a section that are choices of a part of a framework."""
    keys = fields(section)
    return tuple(key.name for key in keys if part in key.metadata["parts"])


def table(doc: str, wants: str = "") -> Any:
    """A key that holds a table of texts, empty if not said."""
    metadata = key(None, doc, wants=wants).metadata
    return field(default_factory=dict, hash=False, metadata=metadata)


@functools.cache  # annotations are texts, and every one is compiled
def type_hints(cls: type) -> Mapping[str, Any]:
    """Types of the keys of a section, without what marks "not said": `| None`, or the variable that stands for it."""
    hints = typing.get_type_hints(cls)
    return types.MappingProxyType(
        {name: _without_none(hint) for name, hint in hints.items()}
    )


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        parts = typing.get_args(hint)
        rest = [
            part
            for part in parts
            if part is not type(None) and not isinstance(part, TypeVar)
        ]
        return rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007 - made at run time
    return hint


def holds_table(cls: type, name: str) -> bool:
    """Whether that key of the section is a table of its own."""
    hint = type_hints(cls).get(name)
    return typing.get_origin(hint) is dict or has_keys(hint)


def has_keys(hint: Any) -> bool:
    """Whether a key's type is a table with keys of its own."""
    return isinstance(hint, type) and is_dataclass(hint)


def build(
    cls: type[T], mapping: object, where: str, section: str, origins: Mapping[str, str]
) -> tuple[T, list[Mistake]]:
    """The section `cls` from a table; a key that is wrong keeps its default and adds a mistake.

    `origins` says which keys came from elsewhere than the file ("--set").
    """
    if not isinstance(mapping, Mapping):
        return cls(), [Mistake(where, section, repr(mapping), "a table of keys")]
    values: dict[str, Any] = {}
    entries = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    hints = type_hints(cls)  # type: ignore[arg-type]
    keys = renamed.current(mapping, entries, where, section)
    mistakes = [*keys.mistakes]
    for name, value in keys.values.items():
        said = keys.said[name]
        dotted = f"{section}.{said}" if section else said
        place = origins.get(dotted, where)
        if name not in entries:
            mistakes.append(_unknown_key(name, cls, place, section))
            continue
        with InputError.collected(mistakes):
            values[name] = _value(entries[name], hints[name], value, place, dotted)
    return cls(**values), mistakes


def _unknown_key(name: str, cls: type, where: str, section: str) -> Mistake:
    dotted, expected = name, "a key"
    if section:
        dotted, expected = f"{section}.{name}", f"a key of [{section}]"
    return Mistake(where, dotted, "unknown key", expected, _hint(name, cls))


def _hint(name: str, cls: type) -> str:
    """What to write instead of a key that the section does not have."""
    elsewhere = words.key_of(name)
    if elsewhere:
        return f'did you mean "{elsewhere}"?'
    keys = [entry.name for entry in fields(cls)]
    return did_you_mean(name, keys) or f"keys: {', '.join(keys)}"


def _value(entry: Field[Any], hint: Any, value: object, where: str, dotted: str) -> Any:
    unit, kind = entry.metadata["unit"], entry.metadata["names"]
    if kind:
        return _choice(tuple(catalog.names(kind)), value, where, dotted)
    if unit:
        converted = _PARSERS[unit](value, where, dotted)
    else:
        converted = _typed(hint, value, where, dotted)
    for item in converted if isinstance(converted, tuple) else (converted,):
        if limit := _limit(item, entry.metadata):
            raise InputError.of(where, dotted, str(value), limit)
    return converted


def _limit(item: Any, limits: Mapping[str, Any]) -> str:
    """What a value should be that is out of a key's limits; empty for all others."""
    low, above, most = limits["low"], limits["above"], limits["most"]
    if isinstance(item, float) and not math.isfinite(item):
        return "a finite number"
    if isinstance(item, int | float) and abs(item) > (most or LARGEST):
        return f"at most {most:,.0f}" if most else f"at most {LARGEST:g}"
    if low is not None and item < low:
        return f"at least {low:g}"
    if above is not None and item <= above:
        return f"more than {above:g}"
    return ""


def _typed(hint: Any, value: object, where: str, dotted: str) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _choice(parts, value, where, dotted)
    if origin is typing.Union:  # a text or a list
        listed = isinstance(value, list | tuple)
        part = next(part for part in parts if (part is str) != listed)
        return _typed(part, value, where, dotted)
    if origin is tuple:
        return _list(parts[0], value, where, dotted)
    if origin is dict:
        return _table(value, where, dotted)
    if has_keys(hint):
        return _inner(hint, value, where, dotted)
    return _scalar(hint, value, where, dotted)


def _list(item: Any, value: object, where: str, dotted: str) -> tuple[Any, ...]:
    """The items of a list, each of the type `item`."""
    if isinstance(value, list | tuple):
        return tuple(_typed(item, one, where, dotted) for one in value)
    expected = f"a list such as {_example(item)}"
    raise InputError.of(where, dotted, repr(value), expected)


def _table(value: object, where: str, dotted: str) -> dict[str, str]:
    """A table in a section, its keys dotted."""
    if isinstance(value, Mapping):
        return dict(flatten(value))
    expected = 'a table such as { "nvlink.bandwidth" = "2x" }'
    raise InputError.of(where, dotted, repr(value), expected)


def _inner(cls: Any, value: object, where: str, dotted: str) -> Any:
    """A table in a section that has keys of its own."""
    made, mistakes = build(cls, value, where, dotted, {})
    InputError.check(mistakes)
    return made


def _example(item: Any) -> str:
    """A list of such items."""
    if typing.get_origin(item) is Literal:
        return (
            "[" + ", ".join(f'"{choice}"' for choice in typing.get_args(item)[:2]) + "]"
        )
    return '["host0", "host[2-5]"]' if item is str else "[1024, 1024, 1]"


def _scalar(hint: type, value: object, where: str, dotted: str) -> Any:
    names = {
        str: "a text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    fits = (
        isinstance(value, bool)
        if hint is bool
        else isinstance(value, hint) and not isinstance(value, bool)
    )
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        # A number of hundreds of digits has no float; its limit is told where all limits are.
        return float(value) if abs(value) <= LARGEST else value
    if not fits:
        shown = whole_number_meant(value, dotted) if hint is int else ""
        raise InputError.of(where, dotted, repr(value), names[hint], shown)
    return value


_SHORT = re.compile(
    r"(\d+(?:\.\d+)?)\s*([kmg]?)i?\s*(?:tokens?|tok|seq|samples?|gpus?|hosts?|nodes?)?",
    re.IGNORECASE,
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def whole_number_meant(value: object, dotted: str) -> str:
    """The whole numbers that "8k" may stand for: lengths are powers of two, counts are not; a batch counts samples."""
    text = str(value).strip()
    match = _SHORT.fullmatch(text)
    if match is None:
        return ""
    if dotted.endswith("batch") and "tok" in text.lower():
        return "it counts samples: divide the tokens by training.seq_len"
    power = _POWERS[match[2].lower()]
    binary, decimal = (round(float(match[1]) * base**power) for base in (1024, 1000))
    return f"write {binary} or {decimal}" if power else f"write {decimal}"


def _choice(choices: tuple[str, ...], value: object, where: str, dotted: str) -> str:
    """One of `choices`, whatever its case: NCCL writes "Ring" and "LL128", file names are "ring"."""
    for choice in choices:
        if isinstance(value, str) and value.lower() == choice.lower():
            return choice
    found = f'"{value}"' if isinstance(value, str) else repr(value)
    raise InputError.of(
        where,
        dotted,
        found,
        f"one of {', '.join(choices)}",
        did_you_mean(str(value), choices),
    )


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Pairs of dotted key and text: TOML reads `nvlink.bandwidth = "2x"` without quotes as a table in a table."""
    pairs: list[tuple[str, str]] = []
    for name, value in mapping.items():
        pairs.extend(
            flatten(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else [(prefix + name, str(value))]
        )
    return pairs
