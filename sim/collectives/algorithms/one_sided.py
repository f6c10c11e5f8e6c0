"""One-sided transfers that a kernel starts itself: NVSHMEM over NVLink, IBGDA or a CPU proxy, NCCL's device API.

No channels, no rendezvous: a put is a latency and bytes at the links' rate; a get asks first, so it waits for the
route twice. Whoever posts to the NIC, the GPU or a thread of the CPU, starts one message after another (`message`).
Collectives are puts of every part to whoever needs it (all-to-all, all-gather, broadcast), at once: what arrives is
not added up, so there is no reduction. Constants: [one_sided] of
sim/costs/hardware/extra-nccl.toml, each with what it rests on. NCCL never chooses it: a caller asks for it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.collectives.algorithms import pairwise
from prestep.sim.collectives.assemble import Call
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths
from prestep.sim.collectives.wires.transport import Flow
from prestep.sim.errors import InputError, Mistake, unknown

OPS = ("put", "get", "all_to_all", "all_gather", "broadcast")
TRANSPORTS = ("ibgda", "proxy")
# Operations of NCCL that are one of these in another name.
SAME = {"send": "put", "recv": "get"}
#: Messages that go from the same ranks to the same, with as many bytes.
AS_MESSAGES = {
    "put": "send",
    "get": "recv",
    "all_to_all": "all_to_all",
    "all_gather": "all_to_all",
}


def plan(call: Call) -> Plan:
    """A put of the call's bytes from the first rank to the second, a get by the first, or a collective of puts.

    Sizes are nccl-tests': an all-to-all and an all-gather move a part for each rank. `transport` of the settings says
    who posts to the NIC: the GPU ("ibgda") or a thread of the CPU ("proxy").

    Raises
    ------
    InputError
        For an operation or a transport that is none, fewer than two ranks, or P2P switched off.
    """
    op, poster = SAME.get(call.op, call.op), call.settings.transport
    _check(op, poster, call)
    fabric, group, ranks = call.fabric, call.group, call.ranks
    # Where the bytes go depends neither on their number nor on the links' speeds: the next size finds it here.
    key = ("puts", op, ranks, group.shape)
    puts = paths.once_routed(fabric, key, lambda: _puts(op, ranks, fabric, group))
    way = poster if puts.far else "nvlink"
    pace = call.constants.tables["one_sided"][way]
    # The busiest rank starts one message after another.
    started = float(pace["message"]) * max(0, puts.most - 1)
    kinds = fabric.links.kind[puts.links]
    wire = np.array([call.constants.wire(str(kind)) for kind in kinds])
    return Plan(
        op,
        call.size,
        ranks,
        "one_sided",
        way,
        0,
        pace["latency"] + _route(op, group, puts.far) + started,
        puts.links,
        puts.data / wire,
        _rate(call, puts, wire),
        "guess",
        data=puts.data,
    )


def _rate(call: Call, puts: _Puts, wire: np.ndarray) -> float:
    """Bytes/s that the narrowest link allows: puts reach less of NVLink, where threads store, than of a NIC."""
    if not len(puts.links):
        return float("inf")
    links, paces = call.fabric.links, call.constants.tables["one_sided"]
    inside, outside = paces["nvlink"]["share"], paces[call.settings.transport]["share"]
    reached = np.where(links.kind[puts.links] == "nvlink", inside, outside)
    return float(np.min(links.bandwidth[puts.links] * wire * reached / puts.data))


def _check(op: str, poster: str, call: Call) -> None:
    """Raises all that is wrong with what was asked for."""
    mistakes = []
    if op not in OPS:
        mistakes.append(unknown("one_sided", "op", op, OPS))
    if poster not in TRANSPORTS:
        mistakes.append(unknown("one_sided", "transport", poster, TRANSPORTS))
    if len(call.ranks) < 2:
        counted = f"{len(call.ranks)} ranks"
        mistakes.append(Mistake("one_sided", "ranks", counted, "at least two"))
    if call.settings.peers_off and not mistakes:
        why = "one-sided transfers need P2P: [nccl] p2p_disable = false"
        mistakes.append(Mistake("nccl", "p2p_disable", "true", why))
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
    flows = _flows(op, ranks)
    place = {gpu: h for h, host in enumerate(group.hosts) for gpu in host}
    leaving = [a for a, b, _ in flows if place[a] != place[b]]
    most = max(Counter(leaving or (a for a, _, _ in flows)).values())
    links, data = paths.gather(fabric, group.expand(fabric, flows))
    return _Puts(links, data, bool(leaving), most)


def _route(op: str, group: Group, far: bool) -> float:
    """Seconds of the links' latency: a get asks first, so it waits for the route twice."""
    route = group.remote_latency if far else group.local_latency
    return route * (2 if op == "get" else 1)


def _flows(op: str, ranks: Sequence[str]) -> list[Flow]:
    """Who writes to whom, and bytes per byte of the size: of an all-gather one part, of a broadcast all of it."""
    if op == "broadcast":
        return [(ranks[0], b, 1.0) for b in ranks[1:]]
    return pairwise.flows(AS_MESSAGES[op], ranks)
