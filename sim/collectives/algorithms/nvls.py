"""NVLink SHARP: the NVSwitches add and copy, so every GPU sends and receives the data once, and its own slice again.

Each GPU is the head of one slice of S / n (of more than 32 GPUs, 32 are, of S / 32). It reads the sum of its slice
from the switches, which fetch it from every GPU, and stores the result through the switches into every GPU: S + S / n
leave a head and as many enter it.

Between hosts the network's switches (SHARP) join the hosts: every GPU with a NIC heads a slice, hands them the sum of
its host, and stores the total that comes back. S / NICs leave and enter every NIC.
NCCL src/transport/nvls.cc, src/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.collectives.assemble import Bytes, Call, assemble
from prestep.sim.collectives.constants import Constants
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.search import MAX_HEADS
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, sharp, transport
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.graph.opgraph import by_link

OPS = ("all_reduce", "all_gather", "reduce_scatter")
PROTOS = ("Simple",)
ORDER = 4
CHANNELS = "nvls_channels"
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 25.0), pci=(0, 0, 0), net=(0, 0, 18.0))
THREADS = 640
MEASURED_HEADS = 8


def plan(call: Call) -> Plan:
    """NVLink SHARP with all of the channels that it has."""
    fabric, group = call.fabric, call.group
    heads = slices(group)
    up, down = crossing(call.op, heads)
    flows = switched(fabric, group.hosts, up, down)
    if group.nodes > 1:
        flows = by_link([flows, sharp.wires(fabric, group, heads)])
    constants = _of_network(longer(call.constants, heads), call.op)
    return assemble(
        replace(call, constants=constants),
        _work(call.size, group, call.channels, call.size * max(up, down)),
        flows,
        algo="nvls",
        threads=THREADS,
        between=ROWS.between_hosts(call.proto),
    )


def _work(size: float, group: Group, channels: int, wire: float) -> protocols.Work:
    """One step through the switches, with `wire` bytes on the busiest link, and one between hosts if there are any."""
    several = group.nodes > 1
    far = size / slices(group) if several else 0.0
    step = size / channels
    return protocols.Work(1, int(several), step, step, wire, far)


def slices(group: Group) -> int:
    """Heads: all GPUs of the only host, or those of each host that have a NIC."""
    return min(MAX_HEADS, group.n) if group.nodes == 1 else sharp.heads(group)


def _of_network(table: Constants, op: str) -> Constants:
    """The constants for an operation: switches that only copy do it as fast as the ports do, those that add do not."""
    if op != "all_gather":
        return table
    return _with_pace(table, net=1.0)


def _with_pace(table: Constants, **changed: Any) -> Constants:
    """The constants with other numbers for NVLink SHARP."""
    pace = replace(table.pace("nvls", "Simple"), **changed)
    return replace(table, paces={**table.paces, ("nvls", "Simple"): pace})


def longer(table: Constants, heads: int) -> Constants:
    """The constants for more heads than a host has: every head's slice has to be as long as there to fill the switches.

    Evidence: guess; of 72 GPUs only all-reduces of 512 MiB and more are published.
    """
    if heads <= MEASURED_HEADS:
        return table
    ramp = table.pace("nvls", "Simple").ramp * heads / MEASURED_HEADS
    return _with_pace(table, ramp=ramp, evidence="guess")


def crossing(op: str, heads: int) -> tuple[float, float]:
    """Bytes per payload byte from the busiest GPU to the switches and back: one of the heads."""
    return {
        "all_reduce": (1 + 1 / heads, 1 + 1 / heads),
        "all_gather": (1 / heads, 1.0),
        "reduce_scatter": (1.0, 1 / heads),
    }[op]


def switched(
    fabric: Any, hosts: Sequence[Sequence[str]], up: float, down: float
) -> Bytes:
    """Links between every GPU and its switches, with `up` bytes one way and `down` the other."""
    pairs = [
        (gpu, host[(at + 1) % len(host)])
        for host in hosts
        for at, gpu in enumerate(host)
    ]
    return transport.halves(fabric, pairs, up, down)


def runs_on(op: str, group: Group, fabric: Any, settings: Nccl) -> str | None:
    """Why NVLink SHARP cannot run, or None."""
    if group.nodes > 1 and (lacks := sharp.missing(group, fabric, settings)):
        return f"between hosts NVLink SHARP needs SHARP in the network too (NCCL picks nvls_tree instead): {lacks}"
    if group.nodes == 1 and op != "all_reduce" and group.n > MAX_HEADS:
        return f"{op} by NVLink SHARP stops at {MAX_HEADS} GPUs"
    return missing(group, fabric, settings)


def missing(group: Group, fabric: Any, settings: Nccl) -> str | None:
    """What NVLink SHARP lacks inside the hosts of `group`, or None."""
    multicast = fabric.cluster_facts.nvlink_sharp
    if settings.nvls is False:
        return "NVLink SHARP is switched off: [nccl] nvls = false"
    if not generation_of(fabric.gpu_model).multicast:
        return f"GPU {fabric.gpu_model} has no NVLink SHARP: NVIDIA's have it from Hopper on"
    if group.smallest < 2:
        return "NVLink SHARP needs at least two GPUs in a host"
    if group.inside == "shm":
        return "NVLink SHARP needs P2P between the GPUs: [nccl] p2p_disable"
    if not switches(group, fabric):
        return "no NVSwitch between the GPUs"
    if multicast is False:
        return f"the NVSwitches of {fabric.name} do no multicast (nvlink_sharp = 0 in its cluster file)"
    if settings.nvls is None and multicast is None:
        return f"the cluster file of {fabric.name} does not say that its NVSwitches do it: [nccl] nvls = true says so"
    return None


def switches(group: Group, fabric: Any) -> bool:
    """Whether every host's first two GPUs meet in an NVSwitch."""
    return paths.once(fabric, ("nvswitches", group), lambda: _switches(group, fabric))


def _switches(group: Group, fabric: Any) -> bool:
    pairs = [(host[0], host[1]) for host in group.hosts if len(host) > 1]
    number, links, _ = transport.ways(fabric, pairs, group.inside)
    first = links[np.searchsorted(number, np.arange(len(pairs)))]
    return all(
        fabric.nodes.kinds[node] == "nvswitch"
        for node in fabric.ends[1][first].tolist()
    )


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table; gathers are left as bus bandwidth there."""
    heads = model.graph.heads
    bus = heads * min(through_switches(op, model), model.graph.nvls_inter)
    own = rows(model.release)
    latency = model.base(own, proto) + model.inside(own, proto)
    if model.group.nodes > 1:
        latency += model.between(own, proto)
    if op == "all_reduce":
        bus *= model.group.n / model.steps(op)
    return latency, bus


def through_switches(op: str, model: Model) -> float:
    """GB/s of bus bandwidth of one head through the NVSwitches' multicast; 0 where there is nobody to share with."""
    heads = model.graph.heads
    if heads < 2:
        return 0.0
    speed = model.graph.nvls * model.kind.multicast_share * (heads - 1) / heads
    return speed * (2 if op == "all_reduce" else (model.local - 1) / model.local)


def rows(release: tuple[int, ...]) -> Rows:
    """The rows of a release: before 2.21 all of the latency was in the base."""
    return (
        ROWS
        if release >= (2, 21)
        else replace(ROWS, base=(23.0, 23.0, 23.0), nvlink=(0, 0, 0))
    )
