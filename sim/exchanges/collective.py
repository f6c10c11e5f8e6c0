"""What `prestep collective` does between its options and its output."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim import assignments, strict
from prestep.sim.collectives import backends, machine
from prestep.sim.collectives.nccl import creation
from prestep.sim.collectives.plan import WORDS, check
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires.processes import LOCAL, WRONG, memory_of
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.exchanges import columns, log_lines, table
from prestep.sim.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    parse_nccl_size,
)
from prestep.topologies import load_cluster

WHERE = "command line"
#: The key of where processes are, which a scenario has in its section of the cluster.
NUMA = "cluster.numa"


@dataclass(frozen=True)
class Sweep:
    """Rows over sizes; `channels` has the rings and trees as NCCL's log prints them, `remark` what holds for all."""

    rows: Sequence[table.Row]
    explain: bool
    channels: tuple[str, ...] = ()
    remark: str = ""

    def to_json(self) -> Any:
        return [row.to_json(self.explain) for row in self.rows]

    def render(self) -> str:
        rows = columns.render(self.rows, explain=self.explain)
        remark = [f"note: {self.remark}"] if self.remark else []
        return "\n".join([*_answer(self.rows), *self.channels, rows, *remark])


def _answer(rows: Sequence[table.Row]) -> Iterator[str]:
    """What the sizes come to, as a comment of nccl-tests: the latency of the smallest, the bandwidth of the fastest."""
    if len(rows) < 2:
        return
    small, fast = rows[0], max(rows, key=lambda row: row.busbw)
    ranks = len(small.plan.ranks)
    latency = f"{format_duration(small.time)} at {format_bytes(small.plan.size)}"
    busbw = f"{format_bandwidth(fast.busbw)} bus bandwidth at {format_bytes(fast.plan.size)}"
    yield f"# {small.plan.op} over {ranks} GPUs: {latency}, {busbw}, bound by {table.short(fast.bottleneck)}"


@dataclass(frozen=True)
class Creation:
    """Costs over rank counts."""

    costs: Sequence[creation.Cost]
    explain: bool

    def to_json(self) -> Any:
        return [cost.to_json() for cost in self.costs]

    def render(self) -> str:
        return creation.render(self.costs, self.explain)


def collective(
    cluster: str,
    op: str,
    hosts: int | None = None,
    min_bytes: str | float = "8",
    max_bytes: str | float = "4G",
    backend: str | None = None,
    ranks: int | None = None,
    gpus: str = "",
    constants: Path | None = None,
    overrides: Sequence[str] = (),
    counts: Path | None = None,
    explain: bool = False,
    **forced: Any,
) -> Sweep | Creation:
    """The rows that were asked for; `forced` are algo, proto and channels, `counts` a file of uneven messages.

    Raises
    ------
    InputError
        For anything wrong with the options, the cluster, or what NCCL would refuse.
    """
    op = op.replace("-", "_")
    smallest, largest = (
        _bytes(min_bytes, "--min-bytes"),
        _bytes(max_bytes, "--max-bytes"),
    )
    nccl, links, numa = settings_of(overrides)
    nccl = _backend(nccl, backend)
    # Which operations of NCCL have messages of unequal sizes is for the sweep to say.
    options = {**forced, "counts": counts if op == backends.CREATION else None}
    _check(nccl, op, options, ranks, gpus)
    fabric = with_processes(_fabric(cluster, hosts, links, constants), numa)
    group = chosen_gpus(gpus, fabric) if gpus else ()
    if op == backends.CREATION:
        return _creation(fabric, ranks or len(group), explain)
    rows = table.sweep(
        fabric,
        op=op,
        ranks=ranks,
        min_bytes=smallest,
        max_bytes=largest,
        nccl=nccl,
        gpus=group,
        explain=explain,
        counts=counts,
        **forced,
    )
    channels = _channels(fabric, rows, nccl) if explain else ()
    remark = nccl.newer if nccl.backend == "nccl" else ""
    return Sweep(rows, explain, channels, remark)


def _bytes(size: str | float, key: str) -> float:
    """Bytes of a text such as "1M", or of a number, as Python's callers have it."""
    if isinstance(size, str):
        return parse_nccl_size(size, key)
    number = isinstance(size, int | float) and not isinstance(size, bool)
    if not number or not math.isfinite(size) or size < 1:
        expected = 'bytes: a number of at least 1, or a text such as "1M"'
        raise InputError.of(WHERE, key, repr(size), expected)
    return float(int(size))


def _fabric(
    cluster: str, hosts: int | None, links: Mapping[str, str], constants: Path | None
) -> Any:
    """The cluster's fabric, with the constants of a file where one is given."""
    fabric = load_cluster(cluster, hosts, links, "--set")
    if constants is not None:
        fabric = fabric.with_columns(constants=str(constants))
    machine.of(fabric)  # the mistakes of its file come before anything else
    return fabric


def _channels(fabric: Any, rows: Sequence[table.Row], nccl: Nccl) -> tuple[str, ...]:
    """NCCL's lines about the communicator of some rows; other backends have no channels."""
    if nccl.backend != "nccl":
        return ()
    return tuple(log_lines.printed(fabric, rows[0].plan.ranks, nccl))


def _backend(nccl: Nccl, backend: str | None) -> Nccl:
    if backend is None:
        return nccl
    if backend.lower() not in WORDS["backend"]:
        raise InputError(unknown(WHERE, "--backend", backend, WORDS["backend"]))
    return replace(nccl, backend=backend.lower())  # type: ignore[arg-type]


def _check(
    nccl: Nccl, op: str, forced: Mapping[str, Any], ranks: int | None, gpus: str
) -> None:
    """Raises what is wrong with the operation, the options, and the settings, in this order.

    NCCL's choices say nothing without NCCL.
    """
    backends.check(nccl.backend, op)
    expected = "nothing: it is an option of NCCL's collectives"
    wrong = [
        Mistake(WHERE, f"--{key}", str(value), expected)
        for key, value in forced.items()
        if value is not None and (nccl.backend != "nccl" or op == backends.CREATION)
    ]
    if ranks and gpus:
        both = f"{ranks} beside --gpus {gpus}"
        wrong.append(Mistake(WHERE, "--ranks", both, "one of the two"))
    if wrong:
        raise InputError(wrong)
    check(nccl, "--set")


def _creation(fabric: Any, ranks: int, explain: bool) -> Creation:
    """Costs of a communicator of `ranks`; 0: of all counts up to the whole cluster."""
    if ranks > len(fabric.gpus):
        expected = f"at most the {len(fabric.gpus)} GPUs of {fabric.name}"
        raise InputError.of(WHERE, "--ranks", str(ranks), expected)
    numbers = [ranks] if ranks else creation.counts(len(fabric.gpus))
    costs = [creation.cost(count, fabric.gpu_model) for count in numbers]
    return Creation(costs, explain)


def settings_of(overrides: Sequence[str]) -> tuple[Nccl, dict[str, str], str]:
    """Settings from items such as "nccl.p2p_disable=true"; changes of the cluster's links; where processes are.

    Raises
    ------
    InputError
        With every item that is none, and every setting that NCCL does not have or that has another type.
    """
    values: dict[str, object] = {}
    links: dict[str, str] = {}
    numa = LOCAL
    mistakes: list[Mistake] = []
    for item in overrides:
        try:
            name, value = assignments.split(item)
            section, _, key = name.partition(".")
            if name == NUMA:
                numa = _numa(value)
            elif section == "nccl":
                values[key] = assignments.read(Nccl, key, value)
            else:
                links[assignments.link_key(name, ("nccl", "cluster"))] = value
        except InputError as error:
            mistakes.extend(error.mistakes)
    nccl, wrong = strict.build(Nccl, values, "--set", "nccl", {})
    if mistakes + wrong:
        raise InputError(mistakes + wrong)
    return nccl, links, numa


def _numa(value: str) -> str:
    """On which socket processes are."""
    if value not in (LOCAL, WRONG):
        raise InputError(unknown("--set", NUMA, value, (LOCAL, WRONG)))
    return value


def with_processes(fabric: Any, numa: str) -> Any:
    """The cluster with its processes where they are.

    Raises
    ------
    InputError
        If they are on another socket of a host that has one.
    """
    if numa == LOCAL:
        return fabric
    moved = fabric.with_processes(numa)
    memory_of(moved, moved.gpus[0])
    return moved


def chosen_gpus(text: str, fabric: Any) -> tuple[str, ...]:
    """GPUs of a list such as "0,2,4-7" or "gpu0,gpu3"; the first is the root.

    Raises
    ------
    InputError
        With every entry that is no GPU of the cluster, and for fewer than two.
    """
    chosen: list[str] = []
    mistakes: list[Mistake] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        listed = _listed(entry, fabric.gpus)
        if isinstance(listed, Mistake):
            mistakes.append(listed)
        else:
            chosen += listed
    mistakes += [
        Mistake(WHERE, "--gpus", f"{name} twice", "every GPU once")
        for name in sorted(_twice(chosen))
    ]
    if len(chosen) < 2 and not mistakes:
        enough = "at least two GPUs, such as 0,1 or 0-3"
        mistakes.append(Mistake(WHERE, "--gpus", f'"{text}"', enough))
    if mistakes:
        raise InputError(mistakes)
    return tuple(chosen)


def _listed(entry: str, names: Sequence[str]) -> Sequence[str] | Mistake:
    """The GPUs of one entry: a name, a number or a range of numbers."""
    if entry in names:
        return [entry]
    first, last = _range(entry)
    if first is None:
        return unknown(WHERE, "--gpus", entry, names)
    if not first <= last < len(names):
        numbers = f"numbers from 0 to {len(names) - 1}"
        return Mistake(WHERE, "--gpus", f'"{entry}"', numbers)
    return names[first : last + 1]


def _range(entry: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", entry)
    return (None, 0) if match is None else (int(match[1]), int(match[2] or match[1]))


def _twice(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
