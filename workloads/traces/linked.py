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

from prestep.sim.errors import InputError
from prestep.workloads.traces import files
from prestep.workloads.traces.columns import Columns
from prestep.workloads.traces.files import integer
from prestep.workloads.traces.operators import Operators
from prestep.workloads.traces.schema import GPU_KINDS, KINDS

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
        aligned = _aligned(self.operators, names)
        if len(aligned) < AGREE * len(self.operators):
            share = f"{len(aligned)} of {len(self.operators)} operators in {Path(path).name}"
            hint = "give the files of one run and rank, recorded at the same time"
            raise InputError.of(
                self.path, "nodes", share, "the execution trace of the same steps", hint
            )
        return aligned

    def dependencies(
        self, by_external: Mapping[int, Operator]
    ) -> list[tuple[int, int]]:
        """(earlier, later) external ids: the later operator reads what the earlier was the last to write."""
        writer, pairs = dict[int, int](), list[tuple[int, int]]()
        for external in sorted(by_external):
            op = by_external[external]
            pairs += [
                (writer[storage], external)
                for storage in sorted(op.reads)
                if storage in writer and writer[storage] != external
            ]
            writer |= dict.fromkeys(op.writes, external)
        return list(dict.fromkeys(pairs))


class _Launched(NamedTuple):
    """GPU work that an operator launched."""

    correlation: int
    stream: int


def link(companion: Companion, rows: Columns, operators: Operators, path: str) -> int:
    """Takes shapes where the profile has none, and rows for data that goes between streams, from an execution trace.

    Returns
    -------
    int
        How many operators of the profile the execution trace describes.
    """
    described = companion.by_external(operators.names(), path)
    for external, op in described.items():
        operators.fill(external, op.name, op.dims, op.types)
    rows.pack()
    launched = _launched(rows)
    for before, after in companion.dependencies(described):
        if before in launched and after in launched:
            _add_data(rows, launched[before][-1], launched[after][0])
    return len(described)


def _launched(rows: Columns) -> dict[int, list[_Launched]]:
    """External id -> GPU work of that operator."""
    columns = (
        rows.column(name).tolist()
        for name in ("kind", "external", "correlation", "stream")
    )
    launched: dict[int, list[_Launched]] = {}
    for kind, external, correlation, stream in zip(*columns, strict=True):
        if KINDS[kind] in GPU_KINDS and correlation >= 0:
            launched.setdefault(external, []).append(_Launched(correlation, stream))
    return launched


def _add_data(rows: Columns, writer: _Launched, reader: _Launched) -> None:
    """Adds a row for data that one operation writes and another reads, if that is on another stream."""
    if writer.stream == reader.stream:
        return
    first = rows.first
    rows.add(
        "data",
        "data",
        reader.stream,
        first,
        first,
        correlation=reader.correlation,
        target=writer.stream,
        sequence=writer.correlation,
    )


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
    order, aligned = sorted(operators), dict[int, Operator]()
    for place, rf in enumerate(order):
        if names.get(rf + shift) != operators[rf].name:
            ahead = {r: operators[r].name for r in order[place : place + AHEAD]}
            moved = _moved(shift, ahead, names)
            if moved is None:
                continue
            shift = moved
        aligned[rf + shift] = operators[rf]
    return aligned


def _moved(
    shift: int, ahead: Mapping[int, str], names: Mapping[int, str]
) -> int | None:
    """The constant nearest to the last one for which the operators ahead agree; None if there is none."""
    near = range(shift - NEAR, shift + NEAR + 1)
    for candidate in sorted(near, key=lambda other: abs(other - shift)):
        if all(names.get(rf + candidate) == name for rf, name in ahead.items()):
            return candidate
    return None


def companion(path: Path) -> Companion:
    """Reads an execution trace of any schema, with or without times.

    Raises
    ------
    InputError
        If it is no whole execution trace.
    """
    operators = {}
    for node in nodes_of(path):
        rf = _rf(node)
        if rf and "cat" not in node:
            operators[rf] = _operator(node)
    if not operators:
        raise InputError.of(
            str(path),
            "nodes",
            "no operator with an rf_id",
            "a trace of ExecutionTraceObserver",
        )
    return Companion(str(path), operators)


def nodes_of(path: Path) -> list[dict[str, Any]]:
    """Nodes of an execution trace.

    Raises
    ------
    InputError
        If it is no whole execution trace.
    """
    root = files.decoded(path, "a whole execution trace")
    nodes = root.get("nodes") if isinstance(root, dict) else root
    if not isinstance(nodes, list):
        kind = type(nodes).__name__
        raise InputError.of(str(path), "nodes", kind, "a list of nodes")
    return [node for node in nodes if isinstance(node, dict)]


def _listed(value: Any) -> list[Any]:
    """A list; nothing for any other value."""
    return value if isinstance(value, list) else []


def _rf(node: Mapping[str, Any]) -> int:
    value = node.get("rf_id")
    for entry in _listed(node.get("attrs")):
        if isinstance(entry, dict) and entry.get("name") == "rf_id":
            value = entry.get("value")
    return integer(value, None) or 0 if isinstance(value, int) else 0


def _operator(node: Mapping[str, Any]) -> Operator:
    """An operator of any schema: its arguments lie in "inputs" and "outputs", or beside each other."""
    inputs, outputs = node.get("inputs", []), node.get("outputs", [])
    shapes, types = node.get("input_shapes", []), node.get("input_types", [])
    if isinstance(inputs, dict):
        shapes, types = inputs.get("shapes", []), inputs.get("types", [])
        inputs = inputs.get("values", [])
    if isinstance(outputs, dict):
        outputs = outputs.get("values", [])
    name = str(node.get("name"))
    reads, writes = frozenset(_storages(inputs)), frozenset(_storages(outputs))
    return Operator(
        name,
        json.dumps(shapes).encode(),
        json.dumps([_plain(str(t)) for t in _listed(types)]).encode(),
        reads,
        writes | reads if name.startswith(TALKS) else writes,
    )


def _plain(text: str) -> str:
    """The type of elements of "Tensor(float)" or "GenericList[Tensor(float),Tensor(float)]"."""
    return re.sub(r"^(?:GenericList\[)?Tensor\((.*?)\).*$", r"\1", text)


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
