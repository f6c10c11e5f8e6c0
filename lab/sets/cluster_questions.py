"""Questions to every cluster: its links, and calls of NCCL on two of its hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lab.sets.answer import Answer
from prestep.sim.collectives import machine
from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.plan import PROTOS, nccl_of
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.errors import InputError
from prestep.topologies import cluster_names, load_cluster

EIGHT = 8  # GPUs that wait for each other


SIZES = (2.0**13, 2.0**17, 2.0**22, 2.0**26, 2.0**30)  # bytes of a collective


OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "sendrecv",
    "all_to_all",
)


# Algorithms and protocols by force, and operations that others than NCCL run.
FORCED = tuple(
    (op, {"algo": a, "proto": p})
    for op in OPS[:3]
    for a in algorithms()
    for p in PROTOS
)


BACKENDS = tuple(
    ("all_reduce", {"backend": "gloo", "tensors": t}) for t in ("gpu", "cpu")
) + tuple(("put", {"backend": "nvshmem", "transport": t}) for t in ("ibgda", "proxy"))


def of_clusters(*names: str) -> Iterator[Answer]:
    """A byte and a gibibyte over every kind of link of every cluster; collectives of its first GPUs."""
    for name in names or cluster_names():
        fabric = load_cluster(name)
        if len(fabric.gpus) > 2 * EIGHT:
            with suppress(InputError):  # some have a size of their own
                fabric = load_cluster(name, 2)
        for kind in fabric.links.kinds:
            links = fabric.links.of_kind(kind)
            for at, (latency, *rates) in enumerate(_different(fabric.links, links)):
                where = f"{kind} {at}" if at else kind
                yield Answer(f"{name}: 1 B over {where}", "links", latency)
                for what, rate in zip(("payload", "wire"), rates, strict=True):
                    yield Answer(
                        f"{name}: 1 GiB of {what} over {where}",
                        "links",
                        latency + 2.0**30 / rate,
                    )
        for fact, known in fabric.facts.items():
            if isinstance(known.value, float):
                yield Answer(f"{name}: {fact}", "links", known.value)
        yield from _collectives(name, fabric)


def _different(links: Any, chosen: Any) -> list[tuple[float, ...]]:
    """(latency, bandwidth, raw) of the links, each once, in order."""
    columns = (links.latency[chosen], links.bandwidth[chosen], links.raw[chosen])
    return list(
        dict.fromkeys(zip(*(column.tolist() for column in columns), strict=True))
    )


def _collectives(name: str, fabric: Any) -> Iterator[Answer]:
    """Calls of each operation on the GPUs of two hosts at most, by size and by what NCCL is forced to."""
    for op, seconds in machine.of(fabric).tables.get("host", {}).items():
        yield Answer(f"{name}: calls of {op} in a row", "collectives", float(seconds))
    gpus = fabric.gpus[: 2 * EIGHT]
    if len(gpus) < 2:
        return
    plain: list[tuple[str, dict[str, str]]] = [(op, {}) for op in OPS]
    for op, forced in (*plain, *FORCED, *BACKENDS):
        ranks = (gpus[0], gpus[-1]) if op in ("sendrecv", "put") else gpus
        call = " ".join((op, *forced.values()))
        for size in SIZES:
            time = _time(op, size, ranks, fabric, forced)
            if time is not None:
                text = f"{name}: {call} of {size:g} B"
                yield Answer(text, "collectives", time)


def _time(
    op: str, size: float, ranks: Any, fabric: Any, forced: dict[str, str]
) -> float | None:
    """Seconds of one call; None for what NCCL refuses there."""
    try:
        plan = plan_collective(op, size, ranks, fabric, nccl_of(forced))
    except InputError:
        return None
    return float(plan.duration(fabric.links.bandwidth))
