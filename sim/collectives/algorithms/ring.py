"""Ring: every rank sends to the next; n - 1 steps to gather or to reduce-scatter, 2 (n - 1) for both.

Broadcast and reduce are pipelines along the ring. NCCL src/device/all_reduce.h, all_gather.h, broadcast.h.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.collectives.algorithms import tree
from prestep.sim.collectives.assemble import Call, Load, assemble
from prestep.sim.collectives.constants import Pace
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import orders, protocols, rccl
from prestep.sim.collectives.nccl.tuning import NET_OVERHEAD, RING_NET, Model, Rows
from prestep.sim.collectives.plan import PROTOS, RING_OPS, Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, transport

__all__ = ["OPS", "PROTOS"]
OPS = RING_OPS
ORDER = 1
PIPELINES = ("broadcast", "reduce")  # along the ring, from or to a root
ROWS = Rows(
    base=(6.6, 14.0, 8.4), nvlink=(0.6, 1.9, 3.4), pci=(1.0, 2.5, 5.7), net=RING_NET
)
# Steps whose chunk (16 bytes at least) holds nothing are skipped: the share of their hop that this saves.
# Evidence: guess, from all-reduces of 8 to 64 bytes on 2 and 4 GPUs.
EMPTY_STEP = 0.6
# Most hops that they save. Evidence: guess, from 8 to 64 bytes on the 8 GPUs of a DGX H100 (NVIDIA dgxc-benchmarking).
EMPTY_MOST = 3.9


def plan(call: Call) -> Plan:
    """A ring over all ranks."""
    op, size, group, proto = call.op, call.size, call.group, call.proto
    fabric = call.fabric
    pace = call.constants.pace("ring", proto)
    count, threads = protocols.used(op, size, group.n, "ring", proto, call.channels)
    root = call.ranks[0] if op in PIPELINES else ""
    flows = _flows(op, fabric, group, root, call.settings)
    slot = protocols.slot(proto, call.settings.buffer_size)
    task = work(op, size, group, proto, count, pace, slot, call.in_place)
    if apart := rccl.orders(group, fabric):
        task = replace(task, local_bytes=task.local_bytes / len(apart))
    elif size > 0 and orders.is_mesh(group, fabric):
        task, call = orders.on_busiest_link(task, call, flows)
    return assemble(
        call,
        task,
        flows,
        algo="ring",
        channels=count,
        threads=threads,
        between=ROWS.between_hosts(proto),
    )


def _flows(op: str, fabric: Any, group: Group, root: str, settings: Nccl) -> Load:
    """`_load`, counted once for each group: gathers move what reduce-scatters move."""
    along = op if op in PIPELINES else sent(op, group.n)
    key = ("ring", group, along, root, settings.cross_nic, settings.release)
    return paths.once(fabric, key, lambda: _routed(op, fabric, group, root, settings))


def _routed(op: str, fabric: Any, group: Group, root: str, settings: Nccl) -> Load:
    """`_load`, counted once for all fabrics with the same routes."""
    along = op if op in PIPELINES else sent(op, group.n)
    searched = rccl.orders(group, fabric) or orders.mesh_rings(group, fabric, settings)
    relays = settings.cross_nic == 0 and transport.relays(group)
    turns = orders.turns(group), settings.cross_nic, relays
    return paths.once_routed(
        fabric,
        ("ring", group.shape, along, root, searched, turns),
        lambda: _load(op, fabric, group, root, searched, settings.cross_nic),
    )


def _load(
    op: str,
    fabric: Any,
    group: Group,
    root: str,
    searched: orders.Orders,
    cross_nic: int,
) -> Load:
    """Links of all cycles, and data bytes on each."""
    cycles = searched or orders.cycles(group, cross_nic)
    share = sent(op, group.n) / len(cycles)
    if cross_nic == 0:
        pairs = [pair for cycle in cycles for pair in orders.neighbours(cycle)]
        flows = [(*pair, share) for pair in pairs if _carries(op, *pair, root)]
        relayed = transport.relayed(flows, group)
        return Load(*paths.gather(fabric, group.expand(fabric, relayed)))
    gpus = [fabric.positions(cycle) for cycle in cycles if len(cycle) > 1]
    nobody = np.empty(0, dtype=np.int64)
    src = np.concatenate([nobody, *gpus])
    dst = np.concatenate([nobody, *(np.roll(each, -1) for each in gpus)])
    if (
        op in PIPELINES
    ):  # nothing comes back to a broadcast's root, or leaves a reduction's
        moves = (dst if op == "broadcast" else src) != fabric.node_index(root)
        src, dst = src[moves], dst[moves]
    return Load(*group.gather(fabric, src, dst, np.full(len(src), share)))


def sent(op: str, n: int) -> float:
    """Bytes each rank sends per payload byte."""
    if op in PIPELINES:
        return 1.0 if n > 1 else 0.0
    return (2 if op == "all_reduce" else 1) * (n - 1) / n


def work(
    op: str,
    size: float,
    group: Group,
    proto: str,
    channels: int,
    pace: Pace,
    slot: float | None = None,
    in_place: bool = False,
) -> protocols.Work:
    """Steps, bytes per step and channel, primitives and link bytes of a ring."""
    if op in PIPELINES:
        return _pipeline(size, group, channels, pace, slot or protocols.slot(proto))
    n = group.n
    rounds = _rounds(op)
    hops = rounds * (n - 1)
    ends = pace.of(pace.ends, op)
    apart = _apart(op, size, n, pace)
    step = size / n / channels
    primitives = apart * _primitives(op, hops, pace, in_place)
    remote = crossed(group, rounds)
    near = hops - remote
    local = near - _skipped(op, size, n, proto, near)
    amount = size * sent(op, n)
    return protocols.Work(
        local,
        remote,
        step,
        primitives * step,
        amount,
        _between_hosts(amount, group),
        silent=apart * ends * step,  # the last primitive only receives
    )


def _primitives(op: str, hops: int, pace: Pace, in_place: bool) -> float:
    """Primitives of a rank in a round of its ring, with the cheaper ones at both ends."""
    return hops - 1 + _first(op, pace, in_place) + pace.of(pace.ends, op)


def _pipeline(
    size: float, group: Group, channels: int, pace: Pace, slot: float
) -> protocols.Work:
    """A broadcast or a reduce: a rank relays what it receives, so all bytes pass every hop once."""
    n, remote = group.n, group.nodes - 1
    share = size / channels
    chunk = min(share, slot)
    fill = max(0, n - 2) * chunk  # the pipeline fills over the ranks in between
    amount = size * (n > 1)
    return protocols.Work(
        pace.depth * (n - 1 - remote),
        remote,
        chunk,
        share,
        amount,
        _between_hosts(amount, group),
        fill,
    )


def _between_hosts(amount: float, group: Group) -> float:
    """Bytes on a link between hosts when each rank sends `amount`, spread over the cycles."""
    return amount / max(1.0, _ways(group)) * (group.nodes > 1)


def _rounds(op: str) -> int:
    """Times that data goes round: an all-reduce reduces and then gathers."""
    return 2 if op == "all_reduce" else 1


def _apart(op: str, size: float, n: int, pace: Pace) -> float:
    """Factor on the work of parts that do not begin at a multiple of 16 bytes."""
    return 1.0 if protocols.aligned(size, n) else pace.unaligned.get(op, 1.0)


def _skipped(op: str, size: float, n: int, proto: str, hops: int) -> float:
    """Hops that steps which have nothing to send save."""
    if op != "all_reduce" or proto != "LL":
        return 0.0
    empty = 1 - min(1.0, size / (16 * n))
    return min(EMPTY_STEP * hops, EMPTY_MOST) * empty


def _first(op: str, pace: Pace, in_place: bool) -> float:
    """Work of a chunk's first primitive, in steps.

    An all-gather's copies the rank's own part to its output while it sends it, which is as much work as passing a part
    on; in place it only sends.
    """
    ends = pace.of(pace.ends, op)
    if op != "all_gather":
        return ends
    if not in_place:
        return max(1.0, ends)
    return pace.sends or min(1.0, ends)


def crossed(group: Group, rounds: int) -> int:
    """Steps between hosts on the way of the last chunk: rounds (n - 1) neighbours in a row, of a ring with one
    network step per host. Hosts of several GPUs have steps enough inside that a chunk may miss; it meets every host.
    """
    if group.nodes < 2:
        return 0
    spare = rounds - min(rounds, group.smallest - 1)
    return rounds * group.nodes - spare


def _ways(group: Group) -> int:
    """Cycles that leave a host by different GPUs, so by different NICs."""
    return group.smallest


def _carries(op: str, src: str, dst: str, root: str) -> bool:
    return not (op == "broadcast" and dst == root) and not (
        op == "reduce" and src == root
    )


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s of payload in NCCL's table."""
    bus = model.graph.count * model.per_channel(ring=True)
    if proto == "LL":
        bus = min(model.ll_max(), bus * model.ll_share(op))
    elif proto == "LL128":
        bus = min(bus * 0.92, model.graph.count * model.kind.ring_ll128[model.column])
    return _latency(op, proto, model), bus * model.group.n / model.steps(op)


def _latency(op: str, proto: str, model: Model) -> float:
    """Microseconds in NCCL's table."""
    if op in PIPELINES:
        return _pipeline_latency(proto, model)
    nodes = model.group.nodes
    remote = (2 if op == "all_reduce" else 1) * (nodes - 1) if nodes > 1 else 0
    if op == "all_reduce" and nodes > 1 and model.release < (2, 21):
        remote = 2 * nodes  # so the source of 2.18 and 2.20 has it
    inside = model.inside(ROWS, proto)
    if nodes > 1:
        amd = 2 if model.group.network.cluster_facts.amd_cpu else 1
        fences = 3 if proto == "Simple" else 1
        inside = max(inside, NET_OVERHEAD * amd * fences)
    local = (model.steps(op) - remote) * inside
    return model.base(ROWS, proto) + local + remote * model.between(ROWS, proto)


def _pipeline_latency(proto: str, model: Model) -> float:
    """Microseconds of a broadcast or a reduce; where GPUs differ NCCL counts on a tree's step under Simple."""
    same = model.graph.same
    rows = ROWS if same or proto != "Simple" else tree.rows(model.release)
    if model.group.nodes > 1:
        step = rows.net[PROTOS.index(proto)]
    else:
        step = model.inside(rows, proto)
    return model.base(ROWS, proto) + (1 if same else model.group.n) * step


def corrected(op: str, size: float, proto: str, model: Model) -> tuple[float, float]:
    """Factors on latency and bandwidth: rings with Simple stall across hosts, and since 2.31 in Blackwell's."""
    if proto != "Simple":
        return 1.0, 1.0
    each = size / (model.graph.channels * model.group.n)
    if each < 64:
        return 1.0, 1.0
    if model.group.nodes > 1:
        return (model.kind.ring_stall if op == "all_reduce" else 1.0), 1.0
    # ncclTuningRingModelSim of the libraries 2.31.2 and 2.32.3, whose sources are not public.
    recent = model.release >= (2, 31) and model.kind.nvlink5 and model.graph.nvlink
    if not recent or op not in ("all_gather", "reduce_scatter"):
        return 1.0, 1.0
    stall = model.kind.ring_stall - 1
    if model.release >= (2, 32):
        less = 0.1 * min(max(each / 2**18 - 1, 0), 1)
        stall = (stall - less) * (1 - (0.1 / stall) ** max(model.group.n - 2, 0))
    return 1 + stall, 1.0
