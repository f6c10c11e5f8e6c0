"""The algorithms chunk by chunk: who sends what to whom in every round, and what everybody has in the end.

Predictions need totals alone. These rounds show that the totals are those of an algorithm that delivers what its
operation promises: tests replay them, and hold the bytes of plans against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prestep.sim.collectives.algorithms.pat import rounds
from prestep.sim.collectives.algorithms.tree import binary_tree, mirrored


class Send(NamedTuple):
    """One transfer: `dst` adds the chunk to its own (reduce) or replaces it."""

    src: int
    dst: int
    chunk: int
    reduce: bool


def replay(
    rounds: list[list[Send]], begin: list[dict[int, set[int]]]
) -> list[dict[int, set[int]]]:
    """Plays rounds of simultaneous sends; state[rank][chunk] = the ranks whose contribution is in it."""
    state = [dict(rank) for rank in begin]
    for sends in rounds:
        moved = [(s, set(state[s.src][s.chunk])) for s in sends]
        for send, content in moved:
            have = state[send.dst].get(send.chunk, set()) if send.reduce else set()
            assert not have & content, "a contribution would be counted twice"
            state[send.dst][send.chunk] = have | content
    return state


def traffic(rounds: list[list[Send]], rank: int) -> tuple[int, int]:
    """Chunks that leave a rank, and that enter it."""
    sends = [s for each in rounds for s in each]
    return sum(s.src == rank for s in sends), sum(s.dst == rank for s in sends)


def whole(n: int, chunks: int, switches: int) -> list[dict[int, set[int]]]:
    """Every rank has its contribution to every chunk; switches have nothing."""
    return [{c: {r} for c in range(chunks)} for r in range(n)] + [
        {} for _ in range(switches)
    ]


def ring(op: str, n: int) -> list[list[Send]]:
    """Rounds of transfers between ranks 0..n-1; rank 0 is the root; an all-reduce has n chunks.

    All-gather starts with chunk r on rank r; reduce-scatter ends with chunk r complete on rank r.
    """
    if op == "broadcast":
        return [[Send(r, r + 1, 0, False)] for r in range(n - 1)]
    if op == "reduce":
        return [[Send(r, (r + 1) % n, 0, True)] for r in range(1, n)]
    reduce = [
        [Send(r, (r + 1) % n, (r - k - 1) % n, True) for r in range(n)]
        for k in range(n - 1)
    ]
    spread = [
        [Send(r, (r + 1) % n, (r - k) % n, False) for r in range(n)]
        for k in range(n - 1)
    ]
    return {
        "all_reduce": reduce + spread,
        "reduce_scatter": reduce,
        "all_gather": spread,
    }[op]


def tree(op: str, n: int) -> list[list[Send]]:
    """Rounds over hosts 0..n-1 with one GPU each: chunk 0 on the first tree, chunk 1 on the second."""
    first = binary_tree(n)
    rounds: list[list[Send]] = []
    for chunk, edges in enumerate((first, mirrored(first, n))):
        level = _levels(edges)
        for depth in range(max(level.values(), default=0), 0, -1):
            rounds.append(
                [Send(c, p, chunk, True) for c, p in edges if level[c] == depth]
            )
        for depth in range(1, max(level.values(), default=0) + 1):
            rounds.append(
                [Send(p, c, chunk, False) for c, p in edges if level[c] == depth]
            )
    return rounds


def _levels(tree: tuple[tuple[int, int], ...]) -> dict[int, int]:
    """Edges from the root to every other host."""
    parent = dict(tree)
    level = {}
    for child in parent:
        node, depth = child, 0
        while node in parent:
            node, depth = parent[node], depth + 1
        level[child] = depth
    return level


def pairwise(op: str, n: int) -> list[list[Send]]:
    """Rounds of transfers; in an all-to-all rank r's chunk for rank q is number r * n + q."""
    if op == "send":
        return [[Send(0, 1, 0, False)]]
    if op == "recv":
        return [[Send(1, 0, 0, False)]]
    if op == "sendrecv":
        return [[Send(r, (r + 1) % n, r, False) for r in range(n)]]
    if op == "gather":
        return [[Send(r, 0, r, False)] for r in range(1, n)]
    if op == "scatter":
        return [[Send(0, r, r, False)] for r in range(1, n)]
    return [
        [Send(r, (r + k) % n, r * n + (r + k) % n, False) for r in range(n)]
        for k in range(1, n)
    ]


def pat(op: str, n: int) -> list[list[Send]]:
    """Rounds between ranks 0..n-1; chunk r starts (all-gather) or ends (reduce-scatter) at rank r."""
    spread = [
        [
            Send((c + rel) % n, (c + rel + reach) % n, c, False)
            for c in range(n)
            for rel in range(0, n - reach, 2 * reach)
        ]
        for reach in (2**k for k in range(rounds(n) - 1, -1, -1))
    ]
    if op == "all_gather":
        return spread
    return [
        [Send(s.dst, s.src, s.chunk, True) for s in sends] for sends in reversed(spread)
    ]


class _Share(NamedTuple):
    """A chunk that a rank exchanges with the switch of its host."""

    rank: int
    switch: int
    chunk: int


def nvls(op: str, n: int, hosts: int = 1) -> list[list[Send]]:
    """Rounds between ranks 0..n-1 and the switch of every host, ranks n...; beyond one host the network is the last.

    An all-reduce has a chunk for every GPU of a host, whose head it is; the others have one for every rank.
    """
    shares = _shares(op, n, n // hosts)
    # A rank heads the chunks of its place.
    headed = [s for s in shares if s.chunk % (n // hosts) == s.rank % (n // hosts)]
    into = [Send(s.rank, s.switch, s.chunk, True) for s in shares]
    own = [Send(s.switch, s.rank, s.chunk, False) for s in headed]
    store = [Send(s.rank, s.switch, s.chunk, False) for s in headed]
    spread = [Send(s.switch, s.rank, s.chunk, False) for s in shares]
    between = _between(op, headed, n + hosts) if hosts > 1 else []
    return {
        "all_reduce": [into, own, *between, store, spread],
        "all_gather": [*between, store, spread],
        "reduce_scatter": [into, own, *between],
    }[op]


def _shares(op: str, n: int, local: int) -> list[_Share]:
    """Every chunk of every rank, with `local` ranks at a switch."""
    chunks = local if op == "all_reduce" else n
    return [_Share(r, n + r // local, c) for r in range(n) for c in range(chunks)]


def _between(op: str, headed: Sequence[_Share], network: int) -> list[list[Send]]:
    """To the switches of the network and back: a gather brings what its rank has, a scatter takes what is its own."""
    own = [s for s in headed if s.chunk == s.rank]
    given = own if op == "all_gather" else headed
    taken = own if op == "reduce_scatter" else headed
    out = [Send(s.rank, network, s.chunk, True) for s in given]
    back = [Send(network, s.rank, s.chunk, False) for s in taken]
    return [out, back]


def nvls_tree(op: str, n: int, hosts: int = 2) -> list[list[Send]]:
    """Rounds of n ranks in `hosts` hosts of n / hosts; the switch of host h is rank n + h; two chunks per head."""
    local = n // hosts
    place = [[h * local + k for k in range(local)] for h in range(hosts)]
    chunks = range(2 * local)
    # Head or rank, and the switch of its host, for every chunk.
    heads = [(place[h][c // 2], n + h, c) for h in range(hosts) for c in chunks]
    everyone = [(r, n + h, c) for h in range(hosts) for r in place[h] for c in chunks]
    into, _ = _sends(everyone, reduce=True)
    store, own = _sends(heads)
    _, spread = _sends(everyone)
    across = [_by_place(sends, place) for sends in tree(op, hosts)]
    return [into, own, *across, store, spread]


def _sends(
    ends: list[tuple[int, int, int]], reduce: bool = False
) -> tuple[list[Send], list[Send]]:
    """Transfers of chunks from ranks to switches, and the other way."""
    up = [Send(rank, switch, c, reduce) for rank, switch, c in ends]
    return up, [Send(switch, rank, c, reduce) for rank, switch, c in ends]


def _by_place(sends: list[Send], place: list[list[int]]) -> list[Send]:
    """A round between hosts as rounds between their GPUs of the same place; each has two chunks of its own."""
    return [
        Send(place[s.src][k], place[s.dst][k], 2 * k + s.chunk, s.reduce)
        for s in sends
        for k in range(len(place[0]))
    ]


def collnet_chain(op: str, n: int, hosts: int = 2) -> list[list[Send]]:
    """Rounds of n ranks in `hosts` hosts; the network is rank n; chunk 0 follows the chain that begins at place 0."""
    local = n // hosts
    up = [
        [Send(h * local + k, h * local + k - 1, 0, True) for h in range(hosts)]
        for k in range(local - 1, 0, -1)
    ]
    out = [Send(h * local, n, 0, True) for h in range(hosts)]
    back = [Send(n, h * local, 0, False) for h in range(hosts)]
    down = [
        [Send(h * local + k - 1, h * local + k, 0, False) for h in range(hosts)]
        for k in range(1, local)
    ]
    return [*up, out, back, *down]


def collnet_direct(op: str, n: int, hosts: int = 2) -> list[list[Send]]:
    """Rounds of n ranks in `hosts` hosts; the network is rank n; chunk k is the slice of the k-th head of each host.

    Gathers and scatters count n chunks, one per rank, that travel through the head of their place.
    """
    local = n // hosts
    place = [[h * local + k for k in range(local)] for h in range(hosts)]
    if op == "all_gather":
        return _gather_steps(place, n)
    chunks = range(local) if op == "all_reduce" else range(n)
    heads = [(c, host[c % local]) for host in place for c in chunks]
    handed = _fan(place, chunks, into=True, reduce=True)
    added = [Send(head, n, c, True) for c, head in heads]
    if op == "reduce_scatter":
        return [handed, added, [Send(n, c, c, False) for c in chunks]]
    received = [Send(n, head, c, False) for c, head in heads]
    return [handed, added, received, _fan(place, chunks, into=False, reduce=False)]


def _gather_steps(place: list[list[int]], n: int) -> list[list[Send]]:
    """Every rank sends its chunk to the network; the heads take those of their place, and pass them on."""
    received = [
        Send(n, head, c, False)
        for host in place
        for k, head in enumerate(host)
        for c in range(k, n, len(host))
    ]
    return [
        [Send(r, n, r, False) for r in range(n)],
        received,
        _fan(place, range(n), into=False, reduce=False),
    ]


def _fan(place: list[list[int]], chunks: range, into: bool, reduce: bool) -> list[Send]:
    """Every rank of a host to the head of each chunk, or the head to every rank."""
    pairs = [
        (r, host[c % len(host)], c)
        for host in place
        for c in chunks
        for r in host
        if r != host[c % len(host)]
    ]
    return [
        Send(r, head, c, reduce) if into else Send(head, r, c, reduce)
        for r, head, c in pairs
    ]
