"""All-gather by recursive doubling, which NCCL may choose."""

from __future__ import annotations

from typing import Any

from prestep.sim.collectives.assemble import Call, assemble
from prestep.sim.collectives.constants import Pace
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl

OPS = ("all_gather",)
PROTOS = ("Simple",)
ORDER = 7  # behind NCCL's own, which win ties
# Microseconds under LL, LL128 and Simple: an operation, and a step over NVLink, over PCIe and between hosts.
ROWS = Rows(base=(0, 0, 4.0), nvlink=(0, 0, 1.0), pci=(0, 0, 2.0), net=(0, 0, 8.0))
CONSTANTS = {
    "Simple": Pace(
        start=8e-6,
        hop=2e-6,
        rate={"all_reduce": 6e10},
        link={"all_reduce": 0.8},
        evidence="guess",
    ),
}


def plan(call: Call) -> Plan:
    """log2(n) rounds between ranks that are 1, 2, 4, ... apart, each with twice the bytes of the one before."""
    group, size = call.group, call.size
    sent = size * (group.n - 1) / group.n
    flows = [
        (gpu, group.ranks[at ^ reach], reach / group.n)
        for reach in reaches(group.n)
        for at, gpu in enumerate(group.ranks)
    ]
    inside = sum(reach < group.per_node for reach in reaches(group.n))
    between = len(reaches(group.n)) - inside
    crossing = size * (group.n - group.per_node) / group.n
    work = protocols.Work(
        inside,
        between,
        size / group.n / call.channels,
        sent / call.channels,
        sent - crossing,
        crossing,
    )
    step = ROWS.between_hosts(call.proto)
    return assemble(call, work, flows, algo="doubling", threads=512, between=step)


def reaches(n: int) -> list[int]:
    """How far apart the ranks of every round are."""
    return [2**k for k in range(n.bit_length() - 1)]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """Why it cannot run there, or None."""
    return (
        None if group.n & (group.n - 1) == 0 else f"{group.n} ranks are no power of two"
    )


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s by which NCCL would compare it with the others."""
    inside = sum(reach < model.local for reach in reaches(model.group.n))
    between = len(reaches(model.group.n)) - inside
    latency = inside * model.inside(ROWS, proto) + between * model.between(ROWS, proto)
    return model.base(ROWS, proto) + latency, model.graph.count * model.per_channel()
