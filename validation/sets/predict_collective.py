"""Predicts measured collectives by the ordinary path: the row's cluster, its settings, NCCL's choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from prestep.sim import progress
from prestep.sim.collectives import machine
from prestep.sim.collectives.constants import OVERLAP, load
from prestep.sim.collectives.interval import interval_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.wires import network
from prestep.sim.costs.interference import laid_over
from prestep.sim.errors import InputError, PrestepError
from prestep.topologies import load_cluster
from prestep.validation.formats.collective_rows import IN_PLACE, TESTED, Row, members
from prestep.validation.formats.overlap_rows import Overlap
from prestep.validation.sets.overlap_run import side_by_side

#: Seconds for which a thread launches one GPU's kernel: nccl-tests -g 8 takes 42 us for up to 1 MiB on ND H100 v5.
LAUNCH = 5.2e-6
HOST = "h200-host-4"  # the measured host; runs of two GPUs are a cluster of their own


@dataclass(frozen=True)
class Prediction:
    """Seconds, between which they should lie, and what NCCL would choose; or why there is none."""

    time: float = float("nan")
    algo: str = ""
    proto: str = ""
    channels: int = 0
    evidence: str = ""
    notes: tuple[str, ...] = ()
    error: str = ""
    interval: tuple[float, float] | None = None


def cluster_of(row: Row) -> Any:
    """The cluster a row ran on.

    Raises
    ------
    InputError
        If there is no such cluster, or it does not scale to the row's hosts.
    """
    return _fabric(
        row.cluster or ("h200-host-2" if row.ranks == 2 else HOST), row.hosts
    )


@lru_cache(maxsize=64)
def _fabric(name: str, hosts: int | None) -> Any:
    return load_cluster(name, hosts)


def gpus_of(row: Row, fabric: Any) -> Sequence[str]:
    """GPUs of a row: the first of the cluster, or the first `per_host` of each host.

    Raises
    ------
    InputError
        If the cluster has too few.
    """
    gpus = list(fabric.gpus)
    if row.per_host:
        by_host: dict[str, list[str]] = {}
        for gpu in gpus:
            by_host.setdefault(fabric.host_of(gpu), []).append(gpu)
        gpus = [gpu for host in by_host.values() for gpu in host[: row.per_host]]
    if len(gpus) < row.ranks:
        found, expected = (
            f"{row.ranks} ranks",
            f"at most the {len(gpus)} GPUs of {fabric.name}",
        )
        raise InputError.of(row.where, "ranks", found, expected)
    return gpus


def predict_row(row: Row) -> Prediction:
    """The prediction of a row; whatever stops it becomes its error, so that one row does not hide the others."""
    try:
        fabric = cluster_of(row)
        op, ranks = members(row, gpus_of(row, fabric))
        plan = plan_collective(
            op, row.size, ranks, fabric, row.wanted, in_place=row.op.endswith(IN_PLACE)
        )
        if row.label in TESTED:
            plan = machine.as_tested(plan, fabric)
        time = called(row, op, plan, fabric)
        known = (
            interval_of(plan, fabric, time) if row.wanted.backend == "nccl" else None
        )
    except PrestepError as error:
        return Prediction(error=str(error))
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return Prediction(error=f"{type(error).__name__}: {error}")
    return _of(plan, time, (known.low, known.high) if known else None)


def _of(
    plan: Plan, time: float, interval: tuple[float, float] | None = None
) -> Prediction:
    ran = plan.algo, plan.proto, plan.channels, plan.evidence, plan.notes
    return Prediction(time, *ran, interval=interval)


def called(row: Row, op: str, plan: Plan, fabric: Any) -> float:
    """Seconds per call as the row was timed: many calls in a row are no faster than the host issues them.

    Where ports are shaped, the buckets are full before the first call and let that much through at once.
    """
    time = plan.duration(fabric.links.bandwidth)
    issued = float(load(fabric.gpu_model).tables["host"].get(op, 0.0))
    if not row.calls:
        least = LAUNCH * row.launches if row.launches > 1 else 0.0
        return max(time + issued * row.alone, least)
    if network.has_token_bucket(fabric) and plan.latency == 0.0:
        time -= network.refill_time(plan, fabric) / row.calls
    return max(time, issued)


def predict_overlap(row: Overlap) -> tuple[Prediction, Prediction]:
    """Kernels and collectives side by side, run by the engine; a kernel alone is the row's, a collective is not."""
    try:
        alone = alone_of(row)
        fabric = cluster_of(alone)
        op, ranks = members(alone, gpus_of(alone, fabric))
        plan = plan_collective(op, alone.size, ranks, fabric, alone.wanted)
        beside = laid_over(machine.of(fabric).tables.get(OVERLAP, {}))
        times = side_by_side(
            row.kernel,
            row.compute,
            row.comm,
            plan,
            fabric.links.bandwidth,
            fabric.gpu_model,
            beside,
        )
    except PrestepError as error:
        return (Prediction(error=str(error)),) * 2
    except Exception as error:  # a crash is a failed row, and the gate fails with it
        return (Prediction(error=f"{type(error).__name__}: {error}"),) * 2
    return _of(plan, times[0]), _of(plan, times[1])


def alone_of(row: Overlap) -> Row:
    """The collective of an overlap row by itself."""
    alone = Row("overlap", row.op, row.ranks, row.size, row.comm, row.comm)
    return replace(alone, where=row.where, cluster=row.cluster, wanted=row.wanted)


def loadable(row: Row) -> str:
    """Why the row's cluster cannot be built, or an empty string."""
    try:
        gpus_of(row, cluster_of(row))
    except PrestepError as error:
        return re.sub(
            r"^\S+:\d+: ", "", str(error)
        )  # the line differs from row to row, the reason does not
    return ""


PARTS = ("kernels", "collectives")


@dataclass(frozen=True)
class Compared:
    """A measured time, s, and its prediction; `skip`: why there is none. `group`: what a tolerance is set for."""

    row: Row | Overlap
    name: str
    group: str = ""
    measured: float = float("nan")
    prediction: Prediction = Prediction()
    skip: str = ""


def predict_all(alone: Iterable[Row], beside: Iterable[Overlap]) -> Iterator[Compared]:
    """Predicts rows of collectives, then both sides of those beside kernels."""
    reasons: dict[tuple[Any, ...], str] = {}
    for row in progress.track(list(alone), "rows"):
        place = row.cluster, row.hosts, row.per_host, row.ranks
        if reason := row.skip or reasons.setdefault(place, loadable(row)):
            yield Compared(row, row.name, skip=reason)
        else:
            yield Compared(row, row.name, row.series, row.time, predict_row(row))
    for pair in progress.track(list(beside), "rows beside kernels"):
        if pair.skip:
            yield Compared(pair, pair.name, skip=pair.skip)
            continue
        times = pair.compute_beside, pair.comm_beside
        for part, time, made in zip(PARTS, times, predict_overlap(pair), strict=True):
            yield Compared(pair, f"{pair.name}/{part}", f"overlap: {part}", time, made)
