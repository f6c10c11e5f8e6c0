"""Gloo: collectives of CPU threads over TCP, where a process group falls back to it or tensors live on the CPU.

GPU tensors are copied to the host's memory, travel from memory to memory over sockets, and are copied back.
Algorithms (pytorch/gloo, gloo/*.cc): rings (all-reduce, gathers, reduce-scatter), a binomial tree whose every round
carries the whole buffer (broadcast), ring and collection at the root (reduce), direct messages (the others).
With S bytes, n ranks, r rounds, b bytes sent or received by the busiest rank and a bytes that it adds:

    time = start + r (hop + route) + copies / PCIe + max(b / rate, b / wire) + a / reduce

Constants: [gloo.tcp] of sim/costs/hardware/extra-nccl.toml. NCCL never chooses it: a caller asks for it by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from prestep.sim.collectives.algorithms import pairwise, ring
from prestep.sim.collectives.assemble import Call
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.orders import neighbours
from prestep.sim.collectives.plan import PAIR_OPS, RING_OPS, Plan
from prestep.sim.collectives.wires import paths, processes
from prestep.sim.graph.opgraph import by_link

OPS = (*RING_OPS, *PAIR_OPS)
Flow = tuple[str, str, float]


def plan(call: Call) -> Plan:
    """Gloo's rings, trees and messages; the first rank is the root."""
    op, ranks, group, fabric = call.op, call.ranks, call.group, call.fabric
    pace = call.constants.tables["gloo"]["tcp"]
    memory = _memory(fabric, group)
    staged = call.settings.tensors == "gpu"
    copies = paths.gather(fabric, _copies(op, ranks, memory) if staged else [])
    wire = paths.gather(fabric, _between_memories(op, ranks, memory))
    # The copies, the sockets and the additions follow each other: a segment at a time, in one thread.
    copying, sending = _seconds(fabric, copies), _seconds(fabric, wire)
    busiest, added = amounts(op, group.n)
    spent = copying + max(busiest / pace["rate"], sending) + added / pace["reduce"]
    hops = rounds(op, group.n) * (pace["hop"] + group.remote_latency)
    return Plan(
        op,
        call.size,
        ranks,
        "gloo",
        "TCP",
        0,
        pace["start"] + hops,
        *by_link([copies, wire]),
        1 / spent if spent else math.inf,
        "guess",
    )


def _memory(fabric: Any, group: Group) -> dict[str, str]:
    """The host memory of every GPU's process."""
    return {gpu: processes.memory_of(fabric, gpu) for gpu in group.ranks}


def amounts(op: str, n: int) -> tuple[float, float]:
    """Bytes through the busiest rank's sockets one way, and bytes it adds up, per payload byte."""
    if n == 1:
        return 0.0, 0.0
    part = (n - 1) / n
    sent = {
        "all_reduce": 2 * part,
        "reduce": 2 * part,
        "broadcast": float(rounds(op, n)),
        "send": 1.0,
        "recv": 1.0,
        "sendrecv": 1.0,
    }.get(op, part)
    return sent, part if op in ("all_reduce", "reduce_scatter", "reduce") else 0.0


def rounds(op: str, n: int) -> int:
    """Messages on the critical path."""
    if n == 1:
        return 0
    ring_rounds = {
        "all_reduce": 2 * (n - 1),
        "all_gather": n - 1,
        "reduce_scatter": n - 1,
        "reduce": n,
    }
    return math.ceil(math.log2(n)) if op == "broadcast" else ring_rounds.get(op, 1)


def _copies(op: str, ranks: Sequence[str], memory: dict[str, str]) -> list[Flow]:
    """Bytes from every GPU to its host's memory, and back."""
    n, flows = len(ranks), []
    for at, gpu in enumerate(ranks):
        root = at == 0
        down, up = {
            "all_gather": (1 / n, 1.0),
            "reduce_scatter": (1.0, 1 / n),
            "broadcast": (float(root), float(not root)),
            "reduce": (1.0, float(root)),
            "gather": (1 / n, float(root)),
            "scatter": (float(root), 1 / n),
            "send": (float(root), float(at == 1)),
            "recv": (float(at == 1), float(root)),
        }.get(op, (1.0, 1.0))
        if down > 0:
            flows.append((gpu, memory[gpu], down))
        if up > 0:
            flows.append((memory[gpu], gpu, up))
    return flows


def _between_memories(
    op: str, ranks: Sequence[str], memory: dict[str, str]
) -> list[Flow]:
    """What travels between the memories of different hosts, per payload byte."""
    flows = [(memory[a], memory[b], amount) for a, b, amount in _flows(op, ranks)]
    return [(a, b, amount) for a, b, amount in flows if a != b]


def _flows(op: str, ranks: Sequence[str]) -> list[Flow]:
    """What travels between ranks, per payload byte."""
    n, around = len(ranks), neighbours(tuple(ranks))
    if op == "broadcast":
        pairs = [pair for pairs in broadcast_rounds(n) for pair in pairs]
        return [(ranks[src], ranks[dst], 1.0) for src, dst in pairs]
    if op == "reduce":
        # Round the ring first; then the root collects a part from everybody.
        passed = [(a, b, (n - 1) / n) for a, b in around]
        return passed + pairwise.flows("gather", ranks)
    if op in PAIR_OPS:
        return pairwise.flows(op, ranks) if n > 1 else []
    return [(a, b, ring.sent(op, n)) for a, b in around]


def broadcast_rounds(n: int) -> list[list[tuple[int, int]]]:
    """Sender and receiver of each transfer of a binomial tree from rank 0, round by round."""
    return [
        [(rank, rank + reach) for rank in range(0, n - reach, 2 * reach)]
        for reach in (2**k for k in range(rounds("broadcast", n) - 1, -1, -1))
    ]


def _seconds(fabric: Any, used: tuple[np.ndarray, np.ndarray]) -> float:
    """Seconds per payload byte on the fullest link."""
    links, usage = used
    return float(np.max(usage / fabric.links.bandwidth[links])) if len(links) else 0.0
