"""Types and ranges of all values in a recording's file, checked before the file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, TypeGuard

from prestep.workloads.operation import ELEMENT_BYTES

#: Key, what was found, what was expected.
Wrong = tuple[str, str, str]
Check = Callable[[Any], bool]
MOST_RANKS = 2**20
MOST_ELEMENTS = 2**60  # of a tensor; numbers beyond do not fit its address
MOST = 2**62
#: PyTorch has more dtypes than kernels have rules for; operations that only look at such a tensor launch nothing.
OTHERS = (
    *("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"),
    *("quint8", "qint8", "qint32", "quint4x2", "quint2x4"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
DTYPES = (*ELEMENT_BYTES, *OTHERS)
SHOWN = 60  # letters of a wrong value that a mistake repeats
NESTED = 16  # lists in lists of an operation's arguments


def wrong_in(table: Mapping[str, Any], events: Mapping[str, Any]) -> Iterator[Wrong]:
    """Every value of a recording's tables that cannot be one; `events`: names of the values of each kind of event.

    Wrong parts are named first; what refers to other parts is looked at where those are right.
    """
    found = list(_parts(table))
    yield from found
    if found:
        return
    known = [_operation_wrong(entry) for entry in table["operations"]]
    for number, text in enumerate(known):
        if text:
            yield f"operations[{number}]", _shown(table["operations"][number]), text
    yield from _ranks(table, events)


def _parts(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Keys of the file, and process groups."""
    for key, (check, expected) in PARTS.items():
        if key in OPTIONAL and key not in table:
            continue
        if key not in table:
            yield key, "nothing", expected
        elif not check(table[key]):
            yield key, _shown(table[key]), expected
    world, groups = table.get("world"), table.get("groups")
    if not isinstance(groups, dict) or not is_count(world):
        return
    for name, ranks in groups.items():
        if not (_list_of(ranks, _below(world)) and ranks and _differ(ranks)):
            yield f"groups.{name}", _shown(ranks), f"ranks below {world}, each once"


def _ranks(table: Mapping[str, Any], events: Mapping[str, Any]) -> Iterator[Wrong]:
    """Every recorded rank, what it did, and whether no other is said to do the same."""
    world, represented = table["world"], list[int]()
    for at, rank in enumerate(table["ranks"]):
        found = list(_rank(rank, world, f"ranks[{at}]"))
        yield from found
        if found:
            return
        represented += rank["represents"]
    if not _differ(represented):
        yield "ranks", _shown(represented), "each rank once in represents"
    for at, rank in enumerate(table["ranks"]):
        for number, row in enumerate(rank["events"]):
            text = _event_wrong(row, events, table, set(represented))
            if text:
                yield f"ranks[{at}].events[{number}]", _shown(row), text


def _rank(rank: Any, world: int, place: str) -> Iterator[Wrong]:
    if not isinstance(rank, dict):
        yield place, _shown(rank), "a table"
        return
    checks: dict[str, tuple[Check, str]] = {
        "rank": (_below(world), f"a rank below {world}"),
        "represents": (
            lambda v: _list_of(v, _below(world)) and rank.get("rank") in v,
            "a list of ranks, itself among them",
        ),
        "events": (lambda v: isinstance(v, list), "a list"),
        "alive": (_sizes, "bytes by the numbers of storages"),
        "segments": (lambda v: _list_of(v, _is_segment), "segments of the allocator"),
        "owners": (_storages, "numbers of storages by name"),
        "modules": (_storages, "numbers of storages by name"),
    }
    for key, (check, expected) in checks.items():
        if key not in rank and key in ("segments", "owners", "modules"):
            continue
        if not check(rank.get(key)):
            yield f"{place}.{key}", _shown(rank.get(key)), expected


def _event_wrong(
    row: Any, events: Mapping[str, Any], table: Mapping[str, Any], known: set[int]
) -> str:
    """What was expected in the place of an event; empty where it is one."""
    if not isinstance(row, list) or not row or not isinstance(row[0], str):
        return "an event: its kind, its values, and calls of Python"
    if row[0] not in events:
        return f"a kind of event: {', '.join(events)}"
    names, values = events[row[0]], row[1:]
    if len(values) != len(names) + 1:
        return f"{', '.join((*names, 'calls'))} after {row[0]}"
    if not is_count(values[-1], 0):
        return "a number of calls of Python at its end"
    for name, value in zip(names, values[:-1], strict=True):
        operation = name == "operation" and row[0].startswith("operate")
        check, expected = (
            (_below(len(table["operations"])), "number of one of the operations")
            if operation
            else VALUES[name]
        )
        if not check(value):
            return f"{name}: {expected}"
    return _communication_wrong(dict(zip(names, values, strict=False)), table, known)


def _communication_wrong(
    values: Mapping[str, Any], table: Mapping[str, Any], known: set[int]
) -> str:
    """The group of a communication, whose ranks all did something, and its peer in that group."""
    if "group" not in values:
        return ""
    if values["group"] not in table["groups"]:
        return f"group: one of {', '.join(table['groups'])}"
    members = table["groups"][values["group"]]
    size = len(members)
    if size > 1 and not known.issuperset(members):
        return f"group: one of the ranks {sorted(known)}"
    if values["kind"] in ("send", "recv") and not _below(size)(values["peer"]):
        return f"peer: a number below {size}, the ranks of its group"
    return ""


def _operation_wrong(entry: Any) -> str:
    """What was expected in the place of an operation; empty where it is one."""
    if not isinstance(entry, list) or len(entry) != 4:
        return "name, arguments, options and results of an operation"
    name, arguments, options, results = entry
    if not isinstance(name, str) or name.count(".") < 1:
        return "an operation's name, such as aten.mm.default"
    if not isinstance(arguments, list) or not isinstance(options, dict):
        return "a list of arguments and a table of options"
    if not all(_is_argument(value) for value in (*arguments, *options.values())):
        return "tensors, numbers, texts and lists of them as arguments"
    if not _list_of(results, _is_operand):
        return f"results with a dtype ({', '.join(ELEMENT_BYTES)}) and a shape"
    return ""


def _is_argument(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict):
        return _is_operand(value)
    if isinstance(value, list):
        inner = depth + 1
        return inner < NESTED and all(_is_argument(one, inner) for one in value)
    if isinstance(value, float):
        return True  # -inf is the mask of an attention
    if isinstance(value, int):
        return abs(value) <= 2**64  # the least of int64 is a value too
    return value is None or isinstance(value, str)


def _is_operand(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    shape: Any = value.get("shape")
    strides: Any = value.get("strides", [])
    if value.get("dtype") not in DTYPES:
        return False
    if not _list_of(shape, is_count_or_zero) or not _list_of(strides, is_whole):
        return False
    elements = 1
    for size in shape:
        elements *= size
    fits = elements < MOST_ELEMENTS and len(strides) in (0, len(shape))
    return fits and isinstance(value.get("device", "cuda"), str)


def _is_segment(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and is_whole(value[0])
        and isinstance(value[1], bool | int)
        and _list_of(value[2], _is_block)
    )


def _is_block(value: Any) -> bool:
    """Bytes, and the storage that lies there or null."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return is_count_or_zero(value[0]) and (value[1] is None or is_whole(value[1]))


def _is_place(value: Any) -> bool:
    """A storage, and where in it a tensor begins."""
    return _list_of(value, is_whole) and len(value) == 2


def is_whole(value: Any) -> TypeGuard[int]:
    """A whole number that a machine's integers hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST


def is_count(value: Any, least: int = 1) -> TypeGuard[int]:
    return is_whole(value) and value >= least


def is_count_or_zero(value: Any) -> bool:
    return is_count(value, 0)


def _below(most: int) -> Check:
    return lambda value: is_count(value, 0) and value < most


def _list_of(value: Any, check: Check) -> bool:
    return isinstance(value, list) and all(check(one) for one in value)


def _differ(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def _texts(value: Any) -> bool:
    return _list_of(value, lambda one: isinstance(one, str))


def _named(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _sizes(value: Any) -> bool:
    numbers = isinstance(value, dict) and all(key.isdecimal() for key in value)
    return numbers and all(map(is_count_or_zero, value.values()))


def _storages(value: Any) -> bool:
    return _named(lambda numbers: _list_of(numbers, is_whole))(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and isfinite(value) and 0 <= value < MOST


_WHOLE = (is_whole, "a whole number")
_NUMBERS = (lambda value: _list_of(value, is_whole), "whole numbers")
_PLACES = (lambda value: _list_of(value, _is_place), "storages with their offsets")
_BYTES = (_finite, "bytes, 0 or more")
_TEXT = (_is_text, "a text")
#: By the names that values of events have: what they are.
VALUES: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("stream", "number", "peer", "tag", "event", "storage"), _WHOLE),
    **dict.fromkeys(("kind", "group", "dtype", "operation"), _TEXT),
    **dict.fromkeys(("reads", "writes"), _PLACES),
    "results": _NUMBERS,
    "bytes": _BYTES,
    "backward": (
        lambda value: value in (0, 1, 2),
        "0: forward, 1: backward, or 2: forward again within backward",
    ),
}
#: Keys of the file, and what they are.
PARTS: dict[str, tuple[Check, str]] = {
    "world": (
        lambda value: is_count(value) and value <= MOST_RANKS,
        f"a number of ranks, at most {MOST_RANKS}",
    ),
    "operations": (lambda value: isinstance(value, list), "a list of operations"),
    "ranks": (lambda value: isinstance(value, list) and bool(value), "a list of ranks"),
    "groups": (lambda value: isinstance(value, dict), "ranks of process groups"),
    "parameters": (is_count_or_zero, "a number of weights"),
    "step": (is_count_or_zero, "the number of a step"),
    "gpu": (_is_text, "the name of a GPU"),
    "assumed": (_named(is_count_or_zero), "how often each value was assumed"),
    "compiled": (_texts, "names of functions"),
    "command": (_texts, "a script and its arguments"),
    "versions": (_named(_is_text), "versions by name"),
    "described": (_named(_is_text), "names of groups"),
    "threads": (is_count_or_zero, "a number of threads"),
    "recomputation": (lambda value: isinstance(value, bool), "true or false"),
}
OPTIONAL = ("described", "threads", "recomputation")
