"""Ring: every rank sends to the next; n - 1 steps to gather or to reduce-scatter, 2 (n - 1) for both.

Broadcast and reduce are pipelines along the ring. NCCL src/device/all_reduce.h, all_gather.h, broadcast.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.collectives import channels as rules
from sim.collectives import protocols, rings
from sim.collectives.assemble import assemble
from sim.collectives.constants import Constants, Pace, load
from sim.collectives.group import Group, group_of
from sim.collectives.plan import RING_OPS, Plan, Send

OPS = RING_OPS
# Steps whose chunk (16 bytes at least) holds nothing are skipped: the share of their hop that this saves.
# Evidence: guess, from all-reduces of 8 to 64 bytes on 2 and 4 GPUs.
EMPTY_STEP = 0.6


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Any = None,
    proto: str = "Simple",
    channels: int = 24,
    table: Constants | None = None,
) -> Plan:
    """A ring over `ranks` with at most `channels` channels; see `sim.collectives.plan_collective` for the choice."""
    group = group_of(fabric, ranks)
    table = table or load(fabric.gpu_model)
    pace = table.paces["ring", proto]
    count, threads = rules.used(op, size, group.n, "ring", proto, channels)
    cycles = rings.cycles(group)
    share = sent(op, group.n) / len(cycles)
    root = ranks[0]
    flows = [(a, b, share) for cycle in cycles for a, b in rings.edges(cycle) if _carries(op, a, b, root)]
    return assemble(
        op, size, group, fabric, work(op, size, group, proto, count, pace), flows,
        algo="ring", proto=proto, channels=count, threads=threads, table=table,
    )  # fmt: skip


def sent(op: str, n: int) -> float:
    """Bytes each rank sends per payload byte."""
    if op in ("broadcast", "reduce"):
        return 1.0 if n > 1 else 0.0
    return (2 if op == "all_reduce" else 1) * (n - 1) / n


def work(op: str, size: float, group: Group, proto: str, channels: int, pace: Pace) -> protocols.Work:
    """Steps, bytes per step and channel, primitives and link bytes of a ring."""
    n, nodes = group.n, group.nodes
    between = size * sent(op, n) / max(1.0, _ways(group))
    if op in ("broadcast", "reduce"):
        share = size / channels
        chunk = min(share, protocols.SLOT[proto])
        remote = nodes - 1
        # A rank relays what it receives: all bytes pass once; the pipeline fills over the ranks in between.
        fill = max(0, n - 2) * chunk
        return protocols.Work(
            pace.depth * (n - 1 - remote), remote, chunk, share, size * (n > 1), between * (nodes > 1), fill
        )  # fmt: skip
    rounds = 2 if op == "all_reduce" else 1
    hops = rounds * (n - 1)
    primitives = hops - 1 + 2 * pace.of(pace.ends, op)
    remote = rounds * (nodes - 1)
    filled = min(1.0, size / (16 * n)) if op == "all_reduce" and proto == "LL" else 1.0
    local = (hops - remote) * (1 - EMPTY_STEP * (1 - filled))
    step = size / n / channels
    return protocols.Work(local, remote, step, primitives * step, size * sent(op, n), between * (nodes > 1))


def _ways(group: Group) -> int:
    """Cycles that leave a host by different GPUs, so by different NICs."""
    return min(len(host) for host in group.hosts)


def _carries(op: str, src: str, dst: str, root: str) -> bool:
    return not (op == "broadcast" and dst == root) and not (op == "reduce" and src == root)


def steps(op: str, n: int) -> list[list[Send]]:
    """Rounds of transfers between ranks 0..n-1; rank 0 is the root; an all-reduce has n chunks.

    All-gather starts with chunk r on rank r; reduce-scatter ends with chunk r complete on rank r.
    """
    if op == "broadcast":
        return [[Send(r, r + 1, 0, False)] for r in range(n - 1)]
    if op == "reduce":
        return [[Send(r, (r + 1) % n, 0, True)] for r in range(1, n)]
    reduce = [[Send(r, (r + 1) % n, (r - k - 1) % n, True) for r in range(n)] for k in range(n - 1)]
    spread = [[Send(r, (r + 1) % n, (r - k) % n, False) for r in range(n)] for k in range(n - 1)]
    return {"all_reduce": reduce + spread, "reduce_scatter": reduce, "all_gather": spread}[op]
