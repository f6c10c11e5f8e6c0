"""NCCL's protocols: channels and threads of one operation, and how long data takes through channels and links.

LL sends 8 bytes of data with 8 of flags, LL128 120 with 8, Simple only data but with a fence per slice
(NCCL src/device/prims_*.h). Each channel is one CTA that copies or reduces at a bounded rate; all channels
together cannot exceed the wire. Either alone is exact, near their crossing both wait for each other:

    transfer = ((bytes per channel / rate) ** q + (link bytes / link bandwidth) ** q) ** (1 / q)

Threads, the split of an operation by cells and the parts of messages are those of NCCL 2.28 (src/enqueue.cc).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prestep.sim.collectives.constants import Constants, Pace
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.search import Graph
from prestep.sim.collectives.nccl.tuning import RING_NET
from prestep.sim.collectives.nccl.ways import reversed_bits
from prestep.sim.collectives.plan import PROTOS

# Bytes on the wire per byte of data.
WIRE = {"LL": 2.0, "LL128": 128 / 120, "Simple": 1.0}
# Largest chunk of one step: eighth of the FIFO (NCCL src/include/device.h); data bytes.
SLOT = {"LL": 32_768, "LL128": 576_000, "Simple": 524_288}
STEPS = 8
MAX_THREADS = {"LL": 512, "LL128": 640, "Simple": 512}
SETTLED = 2.0**24
# Bytes per thread below which a channel, then half of its threads, is given up.
THREAD_BYTES = {"LL": 8, "LL128": 8, "Simple": 64}
P2P_CHUNK = {"local": 524_288, "network": 131_072}
P2P_LL_BYTES = 16_384
ALIGNMENT = 16  # bytes of a CTA thread's widest load and store


def slot(proto: str, buffer: float | None = None) -> float:
    """Data bytes of the largest chunk of one step; `buffer` is NCCL_BUFFSIZE, which only Simple uses."""
    return float(SLOT[proto] if buffer is None or proto != "Simple" else buffer / STEPS)


def aligned(size: float, n: int) -> bool:
    """Whether the parts that n ranks have of a buffer all begin at a multiple of 16 bytes."""
    return n < 2 or size < ALIGNMENT or size // n % ALIGNMENT == 0


def used(
    op: str, size: float, n: int, algo: str, proto: str, available: int
) -> tuple[int, int]:
    """Channels and threads per channel of one operation (enqueue.cc: thresholds, then cells of traffic)."""
    threads = MAX_THREADS[proto]
    per_thread = THREAD_BYTES[proto] * (n if algo == "ring" and proto == "LL" else 1)
    count = available
    while size < count * threads * per_thread:
        if count >= 2:
            count -= 1
        elif threads % 128 == 0:
            threads //= 2
        else:
            break
    traffic = {"all_reduce": 2, "all_gather": n, "reduce_scatter": n}.get(op, 1) * (
        4 if proto == "LL" else 1
    )
    cell = max(16, math.ceil(32_768 / traffic / 16) * 16)
    per_channel = max(32_768.0, size * traffic) / count
    cells = max(1, math.ceil(per_channel / (cell * traffic)))
    return max(1, min(count, math.ceil(size / (cell * cells)))), max(96, threads)


def message_channels(
    size: float, n: int, graph: Graph, nodes: int, buffer: float | None = None
) -> int:
    """Channels of one message between two ranks (init.cc, enqueue.cc: parts of bounded size)."""
    chunk = min(P2P_CHUNK["network" if nodes > 1 else "local"], slot("Simple", buffer))
    smallest, largest = (chunk / 2, chunk) if nodes > 1 else (chunk / 8, 32 * chunk)
    most = graph.per_peer
    while most * n > graph.p2p and most > 1:
        most //= 2
    count = max(1, min(most, math.ceil(size / smallest)))
    while size / count > largest and count <= graph.per_peer // 2:
        count *= 2
    return count


def first_channel(round_: int, p2p: int) -> int:
    """The channel on which the messages of a round begin."""
    return reversed_bits(round_, p2p)


@dataclass(frozen=True)
class Work:
    """What one operation does under one algorithm.

    Attributes
    ----------
    local_hops, remote_hops : float
        Steps on the critical path inside hosts and between them.
    step : float
        Bytes one channel moves per step.
    traffic : float
        Bytes through one channel's primitives, all steps together.
    local_bytes, remote_bytes : float
        Data bytes on the busiest link inside a host, and between hosts (0 if none).
    fill : float
        Bytes of one channel that fill the pipeline before it flows.
    silent : float
        Bytes of one channel's primitives that send nothing (`traffic` has them too).
    """

    local_hops: float
    remote_hops: float
    step: float
    traffic: float
    local_bytes: float
    remote_bytes: float
    fill: float = 0.0
    silent: float = 0.0


def link_time(
    work: Work, group: Group, op: str, proto: str, pace: Pace, constants: Constants
) -> float:
    """Seconds the busiest link needs for the data, its flags and headers."""
    times = []
    share = pace.of(pace.link, op)
    # Only switches that serve many links at once need long messages to fill them (`ramp`); a NIC does not.
    for amount, bandwidth, kind, part, ramp in (
        (work.local_bytes, group.local, group.local_kind, share, pace.ramp),
        (work.remote_bytes, group.remote, group.remote_kind, pace.net, 0.0),
    ):
        if amount > 0 and bandwidth < float("inf"):
            speed = bandwidth * group.network.wire(constants, kind) * part / WIRE[proto]
            times.append(amount / speed * (1 + (ramp / amount) ** pace.power))
    return max(times, default=0.0)


def latency(
    work: Work,
    group: Group,
    between: float,
    proto: str,
    threads: int,
    pace: Pace,
    constants: Constants,
) -> float:
    """Seconds of launch and hops; a fabric with longer links than the measured one adds the difference.

    `between`: seconds of a step between hosts, as NCCL's own tables have it.
    """
    nominal = float(constants.tables["nominal"]["latency"])
    wide = 1 + pace.wide * max(0, threads - 64) / (MAX_THREADS[proto] - 64)
    local = pace.hop * wide + (
        group.local_latency - nominal if group.local_kind else 0.0
    )
    remote = (
        net_hop(between, proto, group) + group.remote_latency
        if work.remote_hops
        else 0.0
    )
    return pace.start + work.local_hops * max(local, 0.0) + work.remote_hops * remote


def net_hop(between: float, proto: str, group: Group) -> float:
    """Seconds of a step between hosts over the links' latency: the cluster file's, else NCCL's own guess, `between`.

    A file says it for a ring. LL and LL128 take the same step under every algorithm; Simple keeps NCCL's proportions.
    """
    stated = group.network.hop(proto)
    if stated is None:
        return between
    return stated if proto != "Simple" else stated * between / ring_step(proto)


def ring_step(proto: str) -> float:
    """Seconds of a ring's step between hosts, as NCCL's own tables have it."""
    return RING_NET[PROTOS.index(proto)] / 1e6


def transfer(
    work: Work,
    size: float,
    group: Group,
    op: str,
    proto: str,
    pace: Pace,
    constants: Constants,
) -> float:
    """Seconds of moving the bytes, on top of the latency, on an idle network."""
    # The first sweep of a CTA's threads over a step is part of the hop's latency.
    beyond = work.step / (work.step + pace.grain) if work.step > 0 else 1.0
    spill = 1 + pace.spill / (1 + (pace.cache / max(size, 1.0)) ** 4)
    rate = group.network.channel_rate(constants, pace.of(pace.rate, op), "ring")
    channel = work.traffic * spill / rate + work.fill / pace.fill
    q = sharpness(pace.sharp, pace.settle, max(work.local_bytes, work.remote_bytes))
    # A CTA runs its primitives one after another: its share of the link lies idle while it only receives, the less the
    # further channels have drifted apart.
    idle = pace.serial * pace.sharp / q * work.silent * spill / rate
    return beyond * joined(
        channel, link_time(work, group, op, proto, pace, constants) + idle, q
    )


def sharpness(sharp: float, settle: float, amount: float) -> float:
    """Exponent of the norm that joins channel time and link time for so many bytes on the link."""
    return sharp + settle * max(0.0, math.log2(max(amount, 1.0) / SETTLED))


def joined(channel: float, link: float, q: float) -> float:
    """Channel time and link time together; never less than either."""
    longest = max(channel, link)
    if longest <= 0:
        return 0.0
    return float(
        longest * ((channel / longest) ** q + (link / longest) ** q) ** (1 / q)
    )
