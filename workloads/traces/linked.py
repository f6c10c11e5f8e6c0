"""A PyTorch execution trace beside the Kineto trace of the same run: shapes and data dependencies of its operators.

Both number what the framework records: Kineto's "Record function id", or its "External id" less a constant, is the
execution trace's `rf_id`. Times are Kineto's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sim.errors import InputError, Mistake
from workloads.traces import files

# Share of the operators of an execution trace that must be in the Kineto trace under the same name.
AGREE = 0.8
# How far the constant may move at once, and how many operators in a row must agree then.
NEAR, AHEAD = 256, 4
TALKS = ("nccl:", "record_param_comms", "c10d::")


class Operator(NamedTuple):
    """An operator: shapes and types as Kineto writes them, and the storages it reads and writes."""

    name: str
    dims: bytes
    types: bytes
    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(frozen=True)
class Companion:
    """The operators of an execution trace by `rf_id`."""

    path: str
    operators: Mapping[int, Operator]

    def by_external(self, names: Mapping[int, str], path: str) -> dict[int, Operator]:
        """The same by the external ids of a Kineto trace, whose operators are named by `names`.

        Raises
        ------
        InputError
            If too few agree to be of the same run.
        """
        found = _aligned(self.operators, names)
        if len(found) < AGREE * len(self.operators):
            share = (
                f"{len(found)} of {len(self.operators)} operators in {Path(path).name}"
            )
            hint = "give the files of one run and rank, recorded at the same time"
            raise InputError(
                Mistake(
                    self.path,
                    "nodes",
                    share,
                    "the execution trace of the same steps",
                    hint,
                )
            )
        return found

    def dependencies(
        self, by_external: Mapping[int, Operator]
    ) -> list[tuple[int, int]]:
        """(earlier, later) external ids: the later operator reads what the earlier was the last to write."""
        last, found = dict[int, int](), list[tuple[int, int]]()
        for external in sorted(by_external):
            op = by_external[external]
            found += [
                (last[s], external)
                for s in sorted(op.reads)
                if s in last and last[s] != external
            ]
            last |= dict.fromkeys(op.writes, external)
        return list(dict.fromkeys(found))


def _shift(names: Mapping[int, str], recorded: Mapping[int, str]) -> int:
    """External id less rf_id: what most operators that occur once in both traces say."""
    counts, others = Counter(names.values()), Counter(recorded.values())
    once = {
        name: rf
        for rf, name in recorded.items()
        if others[name] == 1 and counts[name] == 1
    }
    differences = Counter(
        external - once[name] for external, name in names.items() if name in once
    )
    if differences:
        return differences.most_common(1)[0][0]
    return min(names, default=0) - min(recorded, default=0)


def _aligned(
    operators: Mapping[int, Operator], names: Mapping[int, str]
) -> dict[int, Operator]:
    """Operators by external id. The constant moves where only one of the traces counted something."""
    shift = _shift(names, {rf: op.name for rf, op in operators.items()})
    order, found = sorted(operators), dict[int, Operator]()
    for place, rf in enumerate(order):
        name = operators[rf].name
        if names.get(rf + shift) != name:
            ahead = order[place : place + AHEAD]
            for other in sorted(
                range(shift - NEAR, shift + NEAR + 1), key=lambda s: abs(s - shift)
            ):
                if all(names.get(r + other) == operators[r].name for r in ahead):
                    shift = other
                    break
            else:
                continue
        found[rf + shift] = operators[rf]
    return found


def companion(path: Path) -> Companion:
    """Reads an execution trace of any schema, with or without times.

    Raises
    ------
    InputError
        If it is no whole execution trace.
    """
    try:
        root = msgspec.json.decode(files.content(path))
        nodes = [node for node in root["nodes"] if isinstance(node, dict)]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise InputError(
            Mistake(str(path), "", "JSON that ends early", "a whole execution trace")
        ) from None
    found = {}
    for node in nodes:
        rf = _rf(node)
        if rf and "cat" not in node:
            found[rf] = _operator(node)
    if not found:
        raise InputError(
            Mistake(
                str(path),
                "nodes",
                "no operator with an rf_id",
                "a trace of ExecutionTraceObserver",
            )
        )
    return Companion(str(path), found)


def _rf(node: Mapping[str, Any]) -> int:
    value = node.get("rf_id")
    for entry in node.get("attrs") or []:
        if isinstance(entry, dict) and entry.get("name") == "rf_id":
            value = entry.get("value")
    return value if isinstance(value, int) else 0


def _operator(node: Mapping[str, Any]) -> Operator:
    nested = isinstance(node.get("inputs"), dict)
    shapes = (
        node["inputs"].get("shapes", []) if nested else node.get("input_shapes", [])
    )
    types = node["inputs"].get("types", []) if nested else node.get("input_types", [])
    inputs = node["inputs"].get("values", []) if nested else node.get("inputs", [])
    outputs = (
        node["outputs"].get("values", [])
        if isinstance(node.get("outputs"), dict)
        else node.get("outputs", [])
    )
    name = str(node.get("name"))
    reads, writes = frozenset(_storages(inputs)), frozenset(_storages(outputs))
    plain = [
        re.sub(r"^(?:GenericList\[)?Tensor\((.*?)\).*$", r"\1", str(t)) for t in types
    ]
    return Operator(
        name,
        json.dumps(shapes).encode(),
        json.dumps(plain).encode(),
        reads,
        writes | reads if name.startswith(TALKS) else writes,
    )


def _storages(values: Any) -> Iterable[int]:
    """Storages of the tensors in a list of arguments: [tensor, storage, offset, elements, size, device]."""
    if not isinstance(values, list):
        return
    if (
        len(values) == 6
        and isinstance(values[5], str)
        and all(isinstance(v, int) for v in values[:5])
    ):
        yield values[1]
        return
    for value in values:
        yield from _storages(value)
