"""NCCL's choice of algorithm, protocol and channels: the cost model of src/graph/tuning.cc, version 2.28.

The model selects and does not predict: its times are NCCL's own guesses. What the chosen plan takes comes
from the algorithm's `plan` with constants fitted to measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.collectives import channels as rules
from sim.collectives import constants as files
from sim.collectives import pairwise, ring, tree
from sim.collectives.group import Group, group_of
from sim.collectives.plan import OPS, PAIR_OPS, PROTOS, Plan, Settings, settings
from sim.errors import InputError, Mistake, unknown

# Microseconds for LL, LL128, Simple.
BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
NVLINK = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
PCI = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)}
NET = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
# GB/s for one, two, more hosts.
LL_MAX = {"ampere": (87.7, 22.5, 19.0), "hopper": (141.0, 45.0, 35.0), "blackwell": (282.0, 90.0, 70.0)}
RING_LL128 = {"ampere": (20.0,) * 3, "hopper": (36.7,) * 3, "blackwell": (40.0,) * 3}
TREE_LL128 = {"ampere": (20.0,) * 3, "hopper": (36.7, 36.7, 29.0), "blackwell": (55.6, 31.67, 20.0)}
TREE = {"ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0), "blackwell": (70.0, 42.8, 24.0)}
# Factor on a tree's bandwidth by log2 of the size in units of 64 bytes.
TREE_FACTOR = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
NET_OVERHEAD = 1.0  # microseconds of a ring's step across hosts; NCCL doubles it on AMD hosts


@dataclass(frozen=True)
class Candidate:
    """One row of NCCL's table: seconds and bytes/s as NCCL believes them; `time` decides."""

    algo: str
    proto: str
    latency: float
    bandwidth: float
    time: float


def candidates(op: str, size: float, ranks: Sequence[str], fabric: Any, nccl: Any = None) -> list[Candidate]:
    """Everything NCCL compares for this operation, best first; empty for send, receive and all-to-all."""
    wanted = settings(nccl)
    group = group_of(fabric, ranks)
    if op in PAIR_OPS or group.n == 1:
        return []
    table = files.load(fabric.gpu_model)
    kind = rules.generation(fabric.gpu_model)
    graph = rules.search(group, fabric.gpu_model, wanted, table.wire("nvlink"))
    rows = []
    for algo in ("tree", "ring") if op == "all_reduce" else ("ring",):
        for proto in PROTOS:
            bandwidth, delay = _bandwidth(op, algo, proto, group, graph, kind), _latency(op, algo, proto, group)
            rows.append(_row(op, algo, proto, size, group, graph, bandwidth, delay))
    return sorted(rows, key=lambda row: row.time)  # stable: NCCL's order decides ties


def _row(
    op: str, algo: str, proto: str, size: float, group: Group, graph: rules.Graph, bandwidth: float, delay: float
) -> Candidate:  # fmt: skip
    latency = delay
    if algo == "tree":
        step = (int(size) >> 6).bit_length() - 1
        factors = TREE_FACTOR[proto]
        bandwidth *= factors[step] if 0 <= step < len(factors) else 1.0
    elif proto == "Simple" and op == "all_reduce" and group.nodes > 1 and size / (graph.channels * group.n) >= 64:
        latency *= 1.4
    time = latency * 1e-6 + size / (bandwidth * 1e9)
    return Candidate(algo, proto, latency * 1e-6, bandwidth * 1e9, time)


def _bandwidth(op: str, algo: str, proto: str, group: Group, graph: rules.Graph, kind: str) -> float:
    """GB/s of payload in NCCL's table."""
    k, n = min(group.nodes, 3) - 1, group.n
    per_channel = graph.tree if algo == "tree" else graph.ring
    if group.nodes > 2:
        per_channel = graph.inter
    bus = graph.count * per_channel
    if algo == "tree":
        bus = min(bus * 0.92, graph.count * TREE[kind][k])
        if proto == "LL":
            bus = min(bus / 3.8, LL_MAX[kind][k])
        elif proto == "LL128":
            bus = min(bus * (7 / 9 if group.nodes == 1 else 120 / 128), graph.count * TREE_LL128[kind][k])
        return bus * 0.5 * (0.85 if group.nodes > 1 else 1.0)
    if proto == "LL":
        bus = min(LL_MAX[kind][k], bus * 0.5)
    elif proto == "LL128":
        bus = min(bus * 0.92, graph.count * RING_LL128[kind][k])
    steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(op, n)
    return bus * n / steps


def _latency(op: str, algo: str, proto: str, group: Group) -> float:
    """Microseconds in NCCL's table."""
    p, n, nodes = PROTOS.index(proto), group.n, group.nodes
    inside = (NVLINK if "nvlink" in group.local_kind else PCI)[algo][p]
    between = NET["tree" if nodes == n and nodes > 1 else algo][p]
    if algo == "tree":
        return BASE[algo][p] + 2 * ((n / nodes - 1) * inside + int(math.log2(nodes)) * between)
    if op in ("broadcast", "reduce"):
        return BASE[algo][p] + (between if nodes > 1 else inside)
    rounds = 2 if op == "all_reduce" else 1
    remote = rounds * (nodes - 1) if nodes > 1 else 0
    if nodes > 1:
        inside = max(inside, NET_OVERHEAD * (3 if proto == "Simple" else 1))
    return BASE[algo][p] + (rounds * (n - 1) - remote) * inside + remote * between


def choose(op: str, size: float, ranks: Sequence[str], fabric: Any, nccl: Any = None) -> Plan:
    """The plan NCCL would run.

    Raises
    ------
    InputError
        For an unknown operation, a size that is no size, too few ranks, or a forced algorithm that cannot run here.
    """
    wanted = settings(nccl)
    group = group_of(fabric, ranks)
    _check(op, size, group, wanted)
    if op in PAIR_OPS:
        return pairwise.plan(op, size, ranks, fabric, wanted)
    table = files.load(fabric.gpu_model)
    available = rules.search(group, fabric.gpu_model, wanted, table.wire("nvlink")).channels
    if group.n == 1:
        return ring.plan(op, size, ranks, fabric, wanted, "Simple", 1)
    algo = _algorithm(op, wanted)
    rows = [row for row in candidates(op, size, ranks, fabric, wanted) if row.algo == (algo or row.algo)]
    rows = [row for row in rows if row.proto == (wanted.proto or row.proto)]
    best = rows[0]
    plan = {"ring": ring, "tree": tree}[best.algo].plan(op, size, ranks, fabric, wanted, best.proto, available)
    return replace(plan, notes=_notes(op, group, wanted))


def _notes(op: str, group: Group, wanted: Settings) -> tuple[str, ...]:
    """What was asked for, or would be chosen, and is not what was planned."""
    notes = []
    if wanted.algo == "tree" and op != "all_reduce":
        notes.append(f"{op} has no tree: it runs on the ring")
    if op == "all_reduce" and wanted.nvls is not False and wanted.algo is None and group.nodes == 1 and group.n > 4:
        notes.append("NVLink SHARP, which NCCL would use where the switches have it, is not modelled: ring or tree")
    return tuple(notes)


def _algorithm(op: str, wanted: Settings) -> str | None:
    """A forced algorithm binds the operations that have it; broadcast and gathers keep the ring."""
    return wanted.algo if op == "all_reduce" else None


def _check(op: str, size: float, group: Group, wanted: Settings) -> None:
    where, mistakes = "collective", []
    if op not in OPS:
        mistakes.append(unknown(where, "op", op, OPS))
    if not size >= 0 or math.isinf(size):
        mistakes.append(Mistake(where, "size", str(size), "a finite number of bytes that is not negative"))
    if op in PAIR_OPS[:3] and group.n < 2:
        mistakes.append(Mistake(where, "ranks", f"{group.n} ranks", f"at least two for {op}"))
    if wanted.algo not in (None, "ring", "tree"):
        hint = "NVLink SHARP, CollNet and PAT are not modelled"
        mistakes.append(Mistake(where, "algo", str(wanted.algo), "ring or tree", hint))
    if mistakes:
        raise InputError(mistakes)
