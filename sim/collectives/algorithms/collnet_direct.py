"""CollNet direct: GPUs hand slices to heads over NVLink, and the network's switches (SHARP) add up the hosts.

Every GPU with a NIC heads one slice. A GPU sends each head that head's slice; the head adds them, sends the sum to
the network, receives the total and sends it to all GPUs of its host. S / heads leave and enter every NIC.
NCCL src/transport/coll_net.cc, src/device/all_reduce.h.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.collectives.algorithms import nvls
from prestep.sim.collectives.assemble import Bytes, Call, assemble
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, sharp, transport
from prestep.sim.graph.opgraph import by_link

OPS = ("all_reduce", "all_gather", "reduce_scatter")
PROTOS = ("Simple",)
ORDER = 2
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 3.7), pci=(0, 0, 3.7), net=(0, 0, 31.0))


def plan(call: Call) -> Plan:
    """Slices, added up in the network."""
    op, size, group = call.op, call.size, call.group
    local, heads = group.per_node, sharp.heads(group)
    turns = 2 if op == "all_reduce" else 1
    share = size / call.channels
    work = protocols.Work(
        turns * min(1, local - 1),
        1,
        share,
        turns * size / call.channels,
        turns * size * (local - 1) / local,
        size / heads,
    )
    return assemble(
        call,
        work,
        _bytes(op, call.fabric, group, heads),
        algo="collnet_direct",
        threads=640,
        between=ROWS.between_hosts(call.proto),
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
    inner = paths.gather(fabric, group.expand(fabric, flows))
    return by_link([inner, sharp.wires(fabric, group, heads)])


def runs_on(op: str, group: Group, fabric: Any, settings: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if group.per_node > 1 and not nvls.switches(group, fabric):
        return "CollNet direct needs NVSwitches inside the hosts"
    return sharp.missing(group, fabric, settings)


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
