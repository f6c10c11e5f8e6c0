"""CollNet direct: GPUs hand slices to heads over NVLink, and the network's switches (SHARP) add up the hosts.

Every GPU with a NIC heads one slice. A GPU sends each head that head's slice; the head adds them, sends the sum to
the network, receives the total and sends it to all GPUs of its host. S / heads leave and enter every NIC.
NCCL src/transport/coll_net.cc, src/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prestep.sim.collectives.algorithms import nvls
from prestep.sim.collectives.assemble import Bytes, assemble
from prestep.sim.collectives.constants import Constants
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan, Send
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, sharp, transport
from prestep.sim.graph.usage import by_link

OPS = ("all_reduce", "all_gather", "reduce_scatter")
PROTOS = ("Simple",)
ORDER = 2
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 3.7), pci=(0, 0, 3.7), net=(0, 0, 31.0))


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    proto: str = "Simple",
    channels: int = 16,
    table: Constants | None = None,
) -> Plan:
    """Slices over `ranks`, added up in the network."""
    group = group_of(fabric, ranks, nccl or Nccl())
    local = group.per_node
    heads = sharp.heads(group)
    turns = 2 if op == "all_reduce" else 1
    inside = turns * size * (local - 1) / local
    remote = size / heads
    work = protocols.Work(
        turns * min(1, local - 1),
        1,
        size / channels,
        turns * size / channels,
        inside,
        remote,
    )
    return assemble(
        op,
        size,
        group,
        fabric,
        work,
        _bytes(op, fabric, group, heads),
        algo="collnet_direct",
        proto=proto,
        channels=channels,
        threads=640,
        table=table,
        between=ROWS.between_hosts(proto),
    )


def _bytes(op: str, fabric: Any, group: Group, heads: int) -> Bytes:
    """Slices to and from the heads of each host, and the NICs' way to the network."""
    flows: list[transport.Flow] = []
    for host in group.hosts:
        for head in host[:heads]:
            # A gather enters the network from every GPU's own NIC, a scatter leaves it by the head's.
            others = [gpu for gpu in host if gpu != head]
            flows += [(gpu, head, 1 / heads) for gpu in others if op != "all_gather"]
            flows += [
                (head, gpu, 1 / heads) for gpu in others if op != "reduce_scatter"
            ]
    return by_link(
        [
            paths.gather(fabric, group.expand(fabric, flows)),
            sharp.wires(fabric, group, heads),
        ]
    )


def steps(op: str, n: int, hosts: int = 2) -> list[list[Send]]:
    """Rounds of n ranks in `hosts` hosts; the network is rank n; chunk k is the slice of the k-th head of each host.

    Gathers and scatters count n chunks, one per rank, that travel through the head of their place.
    """
    local = n // hosts
    place = [[h * local + k for k in range(local)] for h in range(hosts)]
    if op == "all_gather":
        return _gather_steps(place, n)
    chunks = range(local) if op == "all_reduce" else range(n)
    heads = [(c, host[c % local]) for host in place for c in chunks]
    handed = _fan(place, chunks, into=True, reduce=True)
    added = [Send(head, n, c, True) for c, head in heads]
    if op == "reduce_scatter":
        return [handed, added, [Send(n, c, c, False) for c in chunks]]
    received = [Send(n, head, c, False) for c, head in heads]
    return [handed, added, received, _fan(place, chunks, into=False, reduce=False)]


def _gather_steps(place: list[list[int]], n: int) -> list[list[Send]]:
    """Every rank sends its chunk to the network; the heads take those of their place, and pass them on."""
    received = [
        Send(n, head, c, False)
        for host in place
        for k, head in enumerate(host)
        for c in range(k, n, len(host))
    ]
    return [
        [Send(r, n, r, False) for r in range(n)],
        received,
        _fan(place, range(n), into=False, reduce=False),
    ]


def _fan(place: list[list[int]], chunks: range, into: bool, reduce: bool) -> list[Send]:
    """Every rank of a host to the head of each chunk, or the head to every rank."""
    pairs = [
        (r, host[c % len(host)], c)
        for host in place
        for c in chunks
        for r in host
        if r != host[c % len(host)]
    ]
    return [
        Send(r, head, c, reduce) if into else Send(head, r, c, reduce)
        for r, head, c in pairs
    ]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if group.per_node > 1 and not nvls.switches(group, fabric):
        return "CollNet direct needs NVSwitches inside the hosts"
    return sharp.missing(group, fabric, wanted)


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table."""
    local, graph = model.local, model.graph
    per_gpu = min(1, local - 1) * model.inside(ROWS, proto) + (local - 1) * 0.4
    latency = model.base(ROWS, proto) + 2 * per_gpu + model.between(ROWS, proto)
    if op != "all_reduce":
        return latency, local * min(graph.ring, 0.9 * graph.inter)
    factor = local / graph.count
    factor -= (factor - 1) / 2
    bus = graph.count * graph.ring / factor * model.kind.collnet
    return latency, bus * 0.5
