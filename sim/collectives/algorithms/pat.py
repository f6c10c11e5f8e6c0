"""PAT, parallel aggregated trees: all-gather and reduce-scatter in log2(n) rounds, one GPU per host.

Every rank's chunk goes down a binomial tree of its own, all trees at once: the farthest copy first, so that the last
and largest round stays between neighbours. n - 1 chunks leave and enter every rank, the lower bound.
Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252;
NCCL src/device/all_gather.h.
"""

from __future__ import annotations

import math
from typing import Any

from prestep.sim.collectives.assemble import Call, assemble
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl

OPS = ("all_gather", "reduce_scatter")
PROTOS = ("Simple",)
ORDER = 6
ROWS = Rows(base=(8.0, 8.0, 8.0), nvlink=(0, 0, 4.0), pci=(0, 0, 4.0), net=(0, 0, 14.0))
ROUNDS_PER_HOP = 3.5  # NCCL counts a round as so much less than a step between hosts


def plan(call: Call) -> Plan:
    """Binomial trees."""
    op, size, n = call.op, call.size, call.group.n
    count, _ = protocols.used(op, size, n, "pat", call.proto, call.channels)
    sent = size * (n - 1) / n
    work = protocols.Work(0, rounds(n), size / n / count, sent / count, 0.0, sent)
    return assemble(
        call,
        work,
        _flows(op, call.group),
        algo="pat",
        channels=count,
        threads=640,
        between=ROWS.between_hosts(call.proto) / ROUNDS_PER_HOP,
    )


def rounds(n: int) -> int:
    """Rounds of a binomial tree over n ranks."""
    return math.ceil(math.log2(n)) if n > 1 else 0


def _flows(op: str, group: Group) -> list[tuple[str, str, float]]:
    """Bytes to the rank 1, 2, 4, ... further, over all rounds (a reduction goes the other way)."""
    n, flows = group.n, []
    for k in range(rounds(n)):
        reach = 2**k
        chunks = math.ceil((n - reach) / (2 * reach))
        for at, gpu in enumerate(group.ranks):
            other = group.ranks[(at + reach) % n]
            pair = (gpu, other) if op == "all_gather" else (other, gpu)
            flows.append((*pair, chunks / n))
    return flows


def runs_on(op: str, group: Group, fabric: Any, settings: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if settings.release < (2, 23):
        return f"NCCL {settings.version} has no PAT: it came with 2.23"
    if group.nodes < 2 or group.nodes != group.n:
        return "PAT runs with one GPU per host"
    return None


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table, which leaves its bus bandwidth unconverted."""
    n, nodes = model.group.n, model.group.nodes
    step = int(math.log2(nodes)) * model.between(ROWS, proto) / ROUNDS_PER_HOP
    latency = model.base(ROWS, proto) + step + 2.8 * n
    return latency, model.graph.count * model.per_channel(ring=True) * 0.75
