"""NCCL over TCP sockets (NET/Socket): what the CPU thread that feeds them costs.

The GPU copies every step into a pinned buffer; one proxy thread per GPU sees it, sends a header of four bytes and then
the data; the proxy thread of the receiver takes both and its GPU copies them on (NCCL src/transport/net.cc and
net_socket.cc). So one hop between hosts takes

    NCCL's own hop + links + messages x (send + receive) + bytes x copy + bytes of one message x stage

where a thread pays `receive` only if it sends and receives in the same round, data of at most 128 bytes travels with
its header (`control` of a message's cost), and so do the empty second halves of small chunks. A thread that has many
messages is busy for their sum, however few of them lie on the critical path. A ring goes round in loops of a FIFO's
half each: a loop begins when the last slice of the one before has come through, and meanwhile the port is idle.
Constants: [socket.tcp] of sim/costs/hardware/extra-nccl.toml; errors: docs/collectives.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.collectives import machine
from prestep.sim.collectives.constants import Constants, Tcp
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import network, transport
from prestep.sim.collectives.wires.proxies import Traffic, counter, traffic_of

INLINE = 128.0  # bytes that travel with their header (NCCL_SOCKET_INLINE)
TASK = 65_536.0  # least bytes of a part that a helper thread takes (NCCL_SOCKET_MIN_TASKSIZE)
MAX_THREADS, MAX_SOCKETS = 16, 64  # of one connection; NCCL takes what is more as this


def tcp_of(fabric: Any) -> Tcp:
    """The constants of TCP on these hosts: the cluster's own file of constants may have its table [socket.tcp].

    A network that is no TCP by itself has physical NICs, whose hops take longer than those of virtual ones.
    """
    own = fabric.cluster_facts.tcp or fabric.constants
    values = machine.of(fabric).tables["socket"]["tcp" if own else "nic"]
    return Tcp(
        **{key: float(value) for key, value in values.items() if key != "evidence"}
    )


def used(group: Group, fabric: Any, settings: Nccl) -> bool:
    """Whether NCCL reaches other hosts of this group by sockets: the cluster file or [nccl] net says so."""
    return group.nodes > 1 and (
        settings.net == "socket" or bool(fabric.cluster_facts.tcp)
    )


def over(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Plan:
    """The plan as sockets carry it: its latency, the rate its proxy threads reach, and goodput on the links."""
    traffic = traffic_of(plan, group, fabric, settings)
    if traffic is None:
        return _without_traffic(plan)
    return _by_sockets(plan, traffic, group, fabric, settings)


def _by_sockets(
    plan: Plan, traffic: Traffic, group: Group, fabric: Any, settings: Nccl
) -> Plan:
    tcp, usage = tcp_of(fabric), _goodput(plan, fabric, machine.of(fabric))
    each, own = message_time(traffic, plan.proto, tcp, settings)
    if plan.algo == "pairwise" and tcp.pair:
        each, own = each + traffic.data * tcp.pair, 0.0
    own += _outside(fabric, group)
    rate = plan.size / (traffic.rounds * each)
    plan = replace(plan, usage=usage, rate_cap=rate, latency=0.0)
    moving = plan.duration(fabric.links.bandwidth)
    delay = _delay(plan, traffic, fabric, each, own, moving)
    # A pause between loops is idle time of a port, which others can use: it lowers this operation's rate, no more.
    pause = _pause(traffic, plan.proto, tcp, own, settings) - network.refill_time(
        plan, fabric
    )
    rate = plan.size / (moving + traffic.loops * max(0.0, pause))
    plan = replace(plan, latency=delay, rate_cap=rate, on_cpu=True)
    return _through_kernels(plan, traffic, tcp, each) if plan.buffered else plan


def _through_kernels(plan: Plan, traffic: Traffic, tcp: Tcp, each: float) -> Plan:
    """A send whose last bytes the sender's kernel holds too, those of a connection for each channel.

    Its kernel on the GPU ends when NCCL's buffers and the CPU's kernel hold the rest, but not before its thread has
    handed that over.
    """
    handed = plan.size - min(plan.size, traffic.rounds * each * plan.rate_cap)
    held = min(handed, plan.buffered + plan.channels * tcp.sent)
    return replace(plan, buffered=max(plan.buffered, held))


def _delay(
    plan: Plan, traffic: Traffic, fabric: Any, each: float, own: float, moving: float
) -> float:
    """Seconds that the operation takes beside the time for which its bytes move; messages are sent on whole."""
    start, step = _start_and_step(plan, machine.of(fabric))
    fixed = start + traffic.local * step
    path = fixed + traffic.remote * (own + each)
    if network.has_token_bucket(fabric):
        return max(0.0, max(path, start + traffic.rounds * each) - moving)
    return max(fixed + traffic.remote * _visible(traffic, own, moving), path - moving)


def _visible(traffic: Traffic, own: float, moving: float) -> float:
    """Seconds of a hop that the wire does not hide: while one slice is on it the next is prepared."""
    hidden = moving / traffic.rounds * (1 - 1 / traffic.slices)
    return max(0.0, own - hidden)


def _without_traffic(plan: Plan) -> Plan:
    """The plan of an operation that needs no socket, or of an algorithm that does not say what sockets carry."""
    if counter(plan.algo):
        return plan
    note = f"{plan.algo} does not say what sockets carry of it: predicted as if by RDMA"
    return replace(plan, notes=(*plan.notes, note))


def _start_and_step(plan: Plan, table: Constants) -> tuple[float, float]:
    """Seconds of launch, and of a hop inside a host."""
    pace = table.paces.get((plan.algo, plan.proto))
    return (table.pairs.start, 0.0) if pace is None else (pace.start, pace.hop)


def _pause(traffic: Traffic, proto: str, tcp: Tcp, own: float, settings: Nccl) -> float:
    """Seconds from the arrival of a loop's last slice until the first of the next loop is on its way."""
    lanes, _ = helpers(traffic.part, settings)
    copied = traffic.part * _copy(proto, tcp) / lanes
    return own + tcp.send + tcp.receive + copied


def _copy(proto: str, tcp: Tcp) -> float:
    """Seconds per byte that a thread copies."""
    return tcp.copy if proto == "Simple" else tcp.copy_flags


def message_time(
    traffic: Traffic, proto: str, tcp: Tcp, settings: Nccl
) -> tuple[float, float]:
    """Seconds of one round in the busiest thread, and of the rest of one hop without its links."""
    light = 1.0 if proto == "Simple" else tcp.light
    one = (tcp.send + (tcp.receive if traffic.shared else 0.0)) * light
    own = protocols.ring_step(proto) + tcp.hop
    if traffic.part <= INLINE:
        return (traffic.data + traffic.empty) * tcp.control * one, own
    lanes, wake = helpers(traffic.part, settings)
    copy = _copy(proto, tcp) / lanes
    if traffic.shared or traffic.both:
        copy += tcp.taken / lanes
    messages = (traffic.data + tcp.control * traffic.empty) * one
    stage = tcp.stage / lanes if proto == "Simple" else 0.0
    each = messages + traffic.amount * copy
    return each, own + traffic.part * stage + wake * tcp.wake


def helpers(part: float, settings: Nccl) -> tuple[float, float]:
    """Threads that copy one message at once, and how many must be woken on the way (0 or 2: one on each side).

    Without NCCL_SOCKET_NTHREADS the proxy thread sends everything itself, whatever NCCL_NSOCKS_PERTHREAD says.
    """
    threads = min(settings.socket_nthreads or 0, MAX_THREADS)
    if threads == 0:
        return 1.0, 0.0
    sockets = threads * min(settings.nsocks_perthread or 1, MAX_SOCKETS // threads)
    tasks = math.ceil(part / max(TASK, math.ceil(part / sockets)))
    return float(max(1, min(threads, tasks))), 2.0


def _outside(fabric: Any, group: Group) -> float:
    """Seconds of the links between the NICs: NCCL's own hop counts those between GPU and NIC on both ends."""
    src, dst = group.hosts[0][0], group.hosts[1][0]
    links, share = transport.between(fabric, src, dst, group.outside)
    near = np.isin(fabric.links.kind[links], ("pcie", "socket", "c2c", "memory"))
    inside = float(np.dot(fabric.links.latency[links] * near, share))
    return max(0.0, group.remote_latency - inside)


def _goodput(plan: Plan, fabric: Any, table: Constants) -> np.ndarray:
    """Bytes on each link: where the cluster file gives TCP's goodput, headers are counted already."""
    if fabric.cluster_facts.tcp is None:
        return plan.usage
    kinds = fabric.links.kind[plan.links]
    wires = np.array([table.wire(str(kind)) for kind in kinds])
    return np.where(kinds != "nvlink", plan.usage * wires, plan.usage)
