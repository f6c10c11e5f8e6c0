"""One-sided transfers that a kernel starts itself: NVSHMEM over NVLink, IBGDA or a CPU proxy, NCCL's device API.

No channels, no rendezvous: a put is a latency and bytes at the links' rate; a get asks first, so it waits for the
route twice. Whoever posts to the NIC, the GPU or a thread of the CPU, starts one message after another (`message`).
Collectives are puts of every part to whoever needs it (all-to-all, all-gather, broadcast), at once: what arrives is
not added up, so there is no reduction. Constants: [one_sided] of
sim/costs/hardware/extra-nccl.toml, each with what it rests on. NCCL never chooses it: a caller asks for it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.collectives import machine
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.plan import Plan, Send
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.errors import InputError, Mistake, unknown

OPS = ("put", "get", "all_to_all", "all_gather", "broadcast")
TRANSPORTS = ("ibgda", "proxy")
# Operations of NCCL that are one of these in another name.
SAME = {"send": "put", "recv": "get"}


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    transport: str | None = None,
) -> Plan:
    """A put of `size` bytes from ranks[0] to ranks[1], a get by ranks[0] from ranks[1], or a collective of puts.

    Sizes are nccl-tests': an all-to-all and an all-gather move parts of `size` / n. `transport` says who posts to the
    NIC: the GPU ("ibgda") or a thread of the CPU ("proxy"); default: what the settings say.

    Raises
    ------
    InputError
        For an operation or a transport that is none, fewer than two ranks, or P2P switched off.
    """
    wanted = nccl or Nccl()
    transport = transport or wanted.transport
    op = SAME.get(op, op)
    _check(op, transport, ranks)
    group = group_of(fabric, ranks, wanted)
    if reason := runs_on(op, group, fabric, wanted):
        raise InputError(Mistake("nccl", "p2p_disable", "true", reason))
    return _put(op, size, ranks, fabric, group, transport)


def _put(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    group: Group,
    transport: str,
) -> Plan:
    """The plan of what was found to be possible."""
    table = machine.of(fabric)
    pace = table.tables["one_sided"]
    # Where the bytes go depends neither on their number nor on the links' speeds: the next size finds it here.
    key = ("puts", op, tuple(ranks), group.shape)
    links, data, far, most = paths.once_routed(
        fabric, key, lambda: _puts(op, ranks, fabric, group)
    )
    wire = np.array([table.wire(str(kind)) for kind in fabric.links.kind[links]])
    rates = _widths(fabric, links, wire, pace, transport) / data
    way = transport if far else "nvlink"
    # The busiest rank starts one message after another.
    started = float(pace[way]["message"]) * max(0, most - 1)
    latency = pace[way]["latency"] + _route(op, group, far) + started
    rate = float(np.min(rates)) if len(links) else float("inf")
    return Plan(
        op,
        size,
        tuple(ranks),
        "one_sided",
        way,
        0,
        latency,
        links,
        data / wire,
        rate,
        "guess",
        data=data,
    )


def _widths(
    fabric: Any, links: Any, wire: Any, pace: Mapping[str, Any], transport: str
) -> Any:
    """What puts reach of every link's bandwidth, less what the wire takes for itself."""
    reached = _reached(fabric.links.kind[links], pace, transport)
    return fabric.links.bandwidth[links] * wire * reached


def _reached(kinds: np.ndarray, pace: Mapping[str, Any], transport: str) -> np.ndarray:
    """Shares of links that puts reach: less on NVLink, where threads store, than on a NIC that copies by itself."""
    inside, outside = pace["nvlink"]["share"], pace[transport]["share"]
    reached: np.ndarray = np.where(kinds == "nvlink", inside, outside)
    return reached


def _check(op: str, transport: str, ranks: Sequence[str]) -> None:
    """Raises all that is wrong with what was asked for."""
    mistakes = []
    if op not in OPS:
        mistakes.append(unknown("one_sided", "op", op, OPS))
    if transport not in TRANSPORTS:
        mistakes.append(unknown("one_sided", "transport", transport, TRANSPORTS))
    if len(ranks) < 2:
        counted = f"{len(ranks)} ranks"
        mistakes.append(Mistake("one_sided", "ranks", counted, "at least two"))
    if mistakes:
        raise InputError(mistakes)


class _Puts(NamedTuple):
    """Links and bytes on each per byte of the size; whether any put leaves its host, and most of those a rank starts.

    Where none does, `most` counts the puts inside the host.
    """

    links: np.ndarray
    data: np.ndarray
    far: bool
    most: int


def _puts(op: str, ranks: Sequence[str], fabric: Any, group: Group) -> _Puts:
    pairs, flows = _flows(op, ranks)
    place = {gpu: h for h, host in enumerate(group.hosts) for gpu in host}
    leaving = [a for a, b in pairs if place[a] != place[b]]
    most = max(Counter(leaving or (a for a, _ in pairs)).values())
    links, data = paths.gather(fabric, group.expand(fabric, flows))
    return _Puts(links, data, bool(leaving), most)


def _route(op: str, group: Group, far: bool) -> float:
    """Seconds of the links' latency: a get asks first, so it waits for the route twice."""
    route = group.remote_latency if far else group.local_latency
    return route * (2 if op == "get" else 1)


def _flows(
    op: str, ranks: Sequence[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str, float]]]:
    """Who writes to whom; and the same with the bytes per byte of the size."""
    pairs, share = _pairs(op, ranks)
    return pairs, [(a, b, share) for a, b in pairs]


def _pairs(op: str, ranks: Sequence[str]) -> tuple[list[tuple[str, str]], float]:
    """Who writes to whom, and which share of the size."""
    if op in ("put", "get"):
        return [(ranks[0], ranks[1]) if op == "put" else (ranks[1], ranks[0])], 1.0
    if op == "broadcast":
        return [(ranks[0], b) for b in ranks[1:]], 1.0
    return [(a, b) for a in ranks for b in ranks if a != b], 1 / len(ranks)


def steps(op: str, n: int) -> list[list[Send]]:
    """One round: everything at once."""
    if op in ("put", "get"):
        return [[Send(0, 1, 0, False) if op == "put" else Send(1, 0, 0, False)]]
    if op == "broadcast":
        return [[Send(0, q, 0, False) for q in range(1, n)]]
    own = op == "all_gather"
    return [
        [
            Send(r, q, r if own else r * n + q, False)
            for r in range(n)
            for q in range(n)
            if r != q
        ]
    ]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if wanted.peers_off:
        return "one-sided transfers need P2P: [nccl] p2p_disable = false"
    return None
