"""CollNet chain: a chain of GPUs adds up each host, the network's switches (SHARP) add up the hosts, and back.

NCCL src/transport/coll_net.cc, src/device/all_reduce.h. S / NICs leave and enter every NIC; a GPU sends and receives
everything twice, but for the chains that it begins or ends.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from prestep.sim.collectives.assemble import Call, assemble
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, sharp, transport
from prestep.sim.graph.opgraph import by_link

OPS = ("all_reduce",)
PROTOS = ("Simple",)
ORDER = 3
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 2.8), pci=(0, 0, 2.8), net=(0, 0, 30.0))


def plan(call: Call) -> Plan:
    """Chains in the hosts, added up in the network."""
    fabric, group = call.fabric, call.group
    heads = max(1, min(group.net.nics, _longest(group)))
    inner = paths.gather(fabric, group.expand(fabric, _flows(group, heads)))
    return assemble(
        call,
        _work(call, heads),
        by_link([inner, sharp.wires(fabric, group, heads)]),
        algo="collnet_chain",
        threads=640,
        between=ROWS.between_hosts(call.proto),
    )


def _longest(group: Group) -> int:
    """GPUs of the largest host."""
    return group.largest


def _work(call: Call, heads: int) -> protocols.Work:
    """Hops up and down the longest chain, one through the network, and the filling of the pipeline."""
    longest, share = _longest(call.group), call.size / call.channels
    chunk = min(share, protocols.slot(call.proto, call.settings.buffer_size))
    inside = 2 * (longest - 1)
    fill = max(0, inside - 1) * chunk
    local, remote = call.size * _passed(longest, heads), call.size / heads
    return protocols.Work(inside, 1, chunk, 2 * share, local, remote, fill)


def _passed(longest: int, heads: int) -> float:
    """Bytes per payload byte that the busiest GPU sends inside its host."""
    # Where every GPU begins a chain and ends another, it sends less in these two.
    return 2 * (longest - 1) / longest if heads == longest else min(2, longest - 1)


def _flows(group: Group, heads: int) -> list[transport.Flow]:
    """Both directions of each host's chains: one chain for every head, which is its first GPU."""
    flows: list[transport.Flow] = []
    for host in group.hosts:
        for k in range(heads):
            chain = host[k:] + host[:k]
            pairs = [(b, a, 1 / heads) for a, b in pairwise(chain)]
            flows += pairs + [(b, a, amount) for a, b, amount in pairs]
    return flows


def runs_on(op: str, group: Group, fabric: Any, settings: Nccl) -> str | None:
    """Why it cannot run, or None."""
    return sharp.missing(group, fabric, settings)


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table."""
    inside = 2 * (model.local - 1) * model.inside(ROWS, proto)
    latency = model.base(ROWS, proto) + inside + model.between(ROWS, proto)
    return latency, model.graph.count * model.graph.ring * 0.5
