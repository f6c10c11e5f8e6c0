"""How many channels one operation uses (NCCL 2.28, src/enqueue.cc: threads, split by cells, parts of messages)."""

from __future__ import annotations

import math

from prestep.sim.collectives.nccl.protocols import MAX_THREADS, slot
from prestep.sim.collectives.nccl.search import Graph, search

__all__ = ["Graph", "first_channel", "message_channels", "search", "used"]

# Bytes per thread below which a channel, then half of its threads, is given up.
THREAD_BYTES = {"LL": 8, "LL128": 8, "Simple": 64}
P2P_CHUNK = {"local": 524_288, "network": 131_072}
P2P_LL_BYTES = 16_384


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
    """The channel on which the messages of a round begin: its number with the bits reversed."""
    bits = p2p.bit_length() - 1
    return int(format(round_ % p2p, f"0{bits}b")[::-1], 2) if bits else 0
