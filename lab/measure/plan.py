"""All cases in the order of their importance, and which of them are held out."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.measure import (
    attention,
    batches,
    domains,
    edges,
    extremes,
    indexer,
    kinds,
    layers,
    layouts,
    libraries,
    moving,
    optimizers,
    pairs,
    pointwise,
    products,
    programs,
    small,
    strays,
    uneven,
    vision,
    widths,
)
from lab.measure.case import Case

FAMILIES = (
    products,
    attention,
    layers,
    pointwise,
    moving,
    optimizers,
    vision,
    layouts,
    extremes,
    batches,
    libraries,
    edges,
    domains,
    widths,
    programs,
    kinds,
    uneven,
    strays,
    small,
    indexer,
    pairs,
)
HELD_OUT = 5  # every fifth size of a family


def planned() -> list[Case]:
    """First round before second; within a round families mixed, so that a run that ends early has some of each."""
    cases = [case for family in FAMILIES for case in family.cases()]
    seen: dict[str, Case] = {}
    for case in cases:
        first = seen.get(identity(case))
        if first is None or case.round < first.round:
            seen[identity(case)] = case
    return sorted(seen.values(), key=lambda case: (case.round, _digest(identity(case))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def identity(case: Case) -> str:
    return identified(case.family, case.op, case.way, case.size, case.setting)


def identified(
    family: str, op: str, way: str, size: tuple[int, ...], setting: dict[str, Any]
) -> str:
    return "|".join((family, op, way, str(size), str(sorted(setting.items()))))


def timed(rows: Path, kind: str = "op") -> set[str]:
    """Identities of the cases of an earlier run (.jsonl.gz)."""
    with gzip.open(rows, "rt") as file:
        cells = [json.loads(line) for line in file]
    return {
        identified(row["family"], row["op"], row["way"], tuple(row["size"]), row["set"])
        for row in cells
        if row["kind"] == kind
    }


def held_out(cases: list[Case]) -> set[str]:
    """Identities of the cases that no constant may be taken from, by a rule that knows no measurement.

    The sizes of a family are ordered by the SHA-256 of family and size; the first fifth is held out. An operation of
    two sizes or more with none among them gives up the first of its own.
    """
    families: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    for case in cases:
        families[case.family][case.size] = None
    held = {
        (family, size)
        for family, sizes in families.items()
        for size in _first(family, list(sizes))
    }
    by_operation: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        by_operation[case.family, case.op].append(case)
    return {
        identity(case) for group in by_operation.values() for case in _held(group, held)
    }


def _held(group: list[Case], held: set[tuple[str, tuple[int, ...]]]) -> Iterator[Case]:
    family, sizes = group[0].family, sorted({case.size for case in group})
    chosen = {size for size in sizes if (family, size) in held}
    if not chosen and len(sizes) > 1:
        chosen = {_ordered(family, sizes)[0]}
    return (case for case in group if case.size in chosen)


def _first(family: str, sizes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return _ordered(family, sizes)[: len(sizes) // HELD_OUT]


def _ordered(family: str, sizes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(sizes, key=lambda size: _digest(f"{family} {size}"))
