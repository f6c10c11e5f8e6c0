"""What `prestep collective` does between its options and its output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim.collectives import backends, machine, request, table
from prestep.sim.collectives.nccl import creation, lines
from prestep.sim.collectives.plan import WORDS, check
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    parse_nccl_size,
)
from prestep.topologies import load_cluster


@dataclass(frozen=True)
class Sweep:
    """Rows over sizes; `channels` has the rings and trees as NCCL's log prints them."""

    rows: Sequence[table.Row]
    explain: bool
    channels: tuple[str, ...] = ()

    def to_json(self) -> Any:
        return [row.to_json(self.explain) for row in self.rows]

    def render(self) -> str:
        rows = table.render(self.rows, explain=self.explain)
        return "\n".join([*_answer(self.rows), *self.channels, rows])


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
    smallest, largest = _sizes(min_bytes, max_bytes)
    nccl, links, numa = request.split(overrides)
    nccl = _backend(nccl, backend)
    _check(nccl, op, {**forced, "counts": _beside(op, counts)}, ranks, gpus)
    fabric = request.placed(_fabric(cluster, hosts, links, constants), numa)
    group = request.gpus(gpus, fabric) if gpus else ()
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
    return Sweep(rows, explain, _channels(fabric, rows, nccl) if explain else ())


def _beside(op: str, counts: Path | None) -> Path | None:
    """The file, where there are no messages at all; elsewhere the sweep says which operations have them."""
    return counts if op == backends.CREATION else None


def _sizes(smallest: str | float, largest: str | float) -> tuple[float, float]:
    """Bytes of the first and of the last row."""
    return _bytes(smallest, "--min-bytes"), _bytes(largest, "--max-bytes")


def _bytes(size: str | float, key: str) -> float:
    """Bytes of a text such as "1M", or of a number, as Python's callers have it."""
    if isinstance(size, str):
        return parse_nccl_size(size, key)
    number = isinstance(size, int | float) and not isinstance(size, bool)
    if not number or not math.isfinite(size) or size < 1:
        expected = 'bytes: a number of at least 1, or a text such as "1M"'
        raise InputError(Mistake("command line", key, repr(size), expected))
    return float(int(size))


def _fabric(
    cluster: str, hosts: int | None, links: Mapping[str, str], constants: Path | None
) -> Any:
    """The cluster's fabric, with the constants of a file where one is given."""
    fabric = load_cluster(cluster, hosts, links, "--set")
    if constants is not None:
        fabric = fabric.with_constants(str(constants))
    machine.of(fabric)  # the mistakes of its file come before anything else
    return fabric


def _channels(fabric: Any, rows: Sequence[table.Row], nccl: Nccl) -> tuple[str, ...]:
    """NCCL's lines about the communicator of some rows; other backends have no channels."""
    if nccl.backend != "nccl":
        return ()
    return tuple(lines.printed(fabric, rows[0].plan.ranks, nccl))


def _backend(nccl: Nccl, backend: str | None) -> Nccl:
    if backend is None:
        return nccl
    if backend.lower() not in WORDS["backend"]:
        raise InputError(
            unknown("command line", "--backend", backend, WORDS["backend"])
        )
    return replace(nccl, backend=backend.lower())  # type: ignore[arg-type]


def _check(
    nccl: Nccl, op: str, forced: Mapping[str, Any], ranks: int | None, gpus: str
) -> None:
    """Raises what is wrong with the operation, the options, and the settings, in this order."""
    backends.check(nccl.backend, op)
    _contradictions(nccl.backend, op, forced, ranks, gpus)
    check(nccl, "--set")


def _contradictions(
    backend: str, op: str, forced: Mapping[str, Any], ranks: int | None, gpus: str
) -> None:
    """Options that say nothing beside others: NCCL's choices without NCCL."""
    wrong = [
        Mistake(
            "command line",
            f"--{key}",
            str(value),
            "nothing: it is an option of NCCL's collectives",
        )
        for key, value in forced.items()
        if value is not None and (backend != "nccl" or op == backends.CREATION)
    ]
    if ranks and gpus:
        wrong.append(
            Mistake(
                "command line",
                "--ranks",
                f"{ranks} beside --gpus {gpus}",
                "one of the two",
            )
        )
    if wrong:
        raise InputError(wrong)


def _creation(fabric: Any, ranks: int, explain: bool) -> Creation:
    """Costs of a communicator of `ranks`; 0: of all counts up to the whole cluster."""
    if ranks > len(fabric.gpus):
        expected = f"at most the {len(fabric.gpus)} GPUs of {fabric.name}"
        raise InputError(Mistake("command line", "--ranks", str(ranks), expected))
    wanted = [ranks] if ranks else creation.counts(len(fabric.gpus))
    costs = [creation.cost(count, fabric.gpu_model) for count in wanted]
    return Creation(costs, explain)
