"""NVLink SHARP inside every host, and the two binary trees between GPUs of the same place in theirs.

Each GPU with a NIC heads one slice of S / heads. It reads the host's sum of its slice from the switches, the slice
goes up and down two trees over the hosts (half of it each), and the result is stored into all GPUs of the host.
NCCL src/transport/nvls.cc, src/graph/trees.cc, src/device/all_reduce.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.collectives.algorithms import nvls, tree
from sim.collectives.assemble import Bytes, assemble
from sim.collectives.constants import Constants
from sim.collectives.group import Group, group_of
from sim.collectives.nccl import protocols
from sim.collectives.nccl.search import MAX_HEADS
from sim.collectives.nccl.tuning import Model, Rows
from sim.collectives.plan import Plan, Send
from sim.collectives.wires import paths, transport
from sim.graph.usage import by_link
from sim.spec.sections import Nccl

OPS = ("all_reduce",)
PROTOS = ("Simple",)
ORDER = 5
CONNECTIONS = tree.CONNECTIONS
CHANNELS = "nvls_channels"
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 25.0), pci=(0, 0, 0), net=(0, 0, 20.9))
# GB/s per channel that NCCL believes in, on one, two and more hosts.
MAX = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
CHUNK = 131_072  # NCCL_NVLS_CHUNKSIZE; half of it from four hosts on


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    proto: str = "Simple",
    channels: int = 16,
    table: Constants | None = None,
) -> Plan:
    """NVLink SHARP in the hosts of `ranks` and trees between them, with all of its `channels` channels."""
    group = group_of(fabric, ranks, nccl or Nccl())
    heads = _heads(group)
    share = size / channels
    remote = 2 * tree.depth(group.nodes)
    chunk = min(share / heads, chunk_of(size, group, channels))
    fill = max(0, remote - 1) * chunk
    work = protocols.Work(
        1,
        remote,
        min(share, CHUNK),
        share,
        size * (1 + 1 / heads),
        size * tree.busiest(group.nodes) / heads,
        fill,
    )
    plan = assemble(
        op,
        size,
        group,
        fabric,
        work,
        paths.once(
            fabric, ("nvls_tree", group, heads), lambda: _bytes(fabric, group, heads)
        ),
        algo="nvls_tree",
        proto=proto,
        channels=channels,
        threads=nvls.THREADS,
        table=table,
        between=ROWS.between_hosts(proto),
    )
    most = tree.believed(MAX, fabric, group, heads) * group.n / (2 * (group.n - 1))
    # The first chunks of all channels share a head's NIC at every level of the tree.
    filling = max(0, remote - 1) * chunk * channels / group.remote
    return replace(
        plan,
        latency=plan.latency + tree.waits(group) + filling,
        rate_cap=min(plan.rate_cap, most),
    )


def chunk_of(size: float, group: Group, channels: int) -> float:
    """Bytes of a slice that move at once (enqueue.cc): smaller when there is little to pipeline."""
    chunk = float(CHUNK if group.nodes < 4 else CHUNK // 2)
    pieces = channels * _heads(group)
    for least, most in ((32, 262_144), (16, 131_072), (4, 65_536), (1, 32_768)):
        if size < least * pieces * chunk and chunk > most:
            chunk = most
    return chunk


def _heads(group: Group) -> int:
    """Slices: one per GPU with a NIC of its own."""
    return max(1, min(MAX_HEADS, group.net.nics, *(len(host) for host in group.hosts)))


def _bytes(fabric: Any, group: Group, heads: int) -> Bytes:
    # A GPU that heads no slice only hands in the data and takes the result; heads move their slice once more.
    slices = [
        tuple(tree.turned(host, k, heads)[0] for k in range(heads))
        for host in group.hosts
    ]
    parts = [nvls.switched(fabric, group.hosts, 1.0, 1.0)]
    led = [
        (gpu, host)
        for host, leading in zip(group.hosts, slices, strict=True)
        for gpu in leading
    ]
    pairs = [(gpu, host[(host.index(gpu) + 1) % len(host)]) for gpu, host in led]
    parts.append(transport.halves(fabric, pairs, 1 / heads, 1 / heads))
    first = tree.binary_tree(group.nodes)
    edges = [
        (slices[child][k], slices[parent][k], 0.5 / heads)
        for edge in (first, tree.mirrored(first, group.nodes))
        for child, parent in edge
        for k in range(heads)
    ]
    flows = edges + [(b, a, amount) for a, b, amount in edges]
    return by_link([*parts, paths.gather(fabric, group.expand(fabric, flows))])


def steps(op: str, n: int, hosts: int = 2) -> list[list[Send]]:
    """Rounds of n ranks in `hosts` hosts of n / hosts; the switch of host h is rank n + h; two chunks per head."""
    local = n // hosts
    place = [[h * local + k for k in range(local)] for h in range(hosts)]
    chunks = range(2 * local)
    into = [
        Send(r, n + h, c, True) for h in range(hosts) for r in place[h] for c in chunks
    ]
    own = [
        Send(n + h, place[h][c // 2], c, False) for h in range(hosts) for c in chunks
    ]
    store = [
        Send(place[h][c // 2], n + h, c, False) for h in range(hosts) for c in chunks
    ]
    spread = [
        Send(n + h, r, c, False) for h in range(hosts) for r in place[h] for c in chunks
    ]
    across = [
        [
            Send(place[s.src][k], place[s.dst][k], 2 * k + s.chunk, s.reduce)
            for s in sends
            for k in range(local)
        ]
        for sends in tree.steps(op, hosts)
    ]
    return [into, own, *across, store, spread]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if group.nodes < 2:
        return "nvls_tree needs at least two hosts"
    if any(
        len({fabric.host_of(gpu) for gpu in (host[0], host[-1])}) > 1
        for host in group.hosts
    ):
        # Evidence: guess. 1,440 GB200 take 4.5 ms longer than their bytes need: the steps of a ring, not of a tree.
        return "between racks whose hosts share NVSwitches it is taken not to run"
    return nvls.missing(group, fabric, wanted)


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table."""
    own = rows(model.release)
    hops = 2 * int(math.log2(model.group.nodes)) * model.between(own, proto)
    latency = model.base(own, proto) + model.inside(own, proto) + hops
    return latency, bus(op, model) * model.group.n / model.steps(op)


def bus(op: str, model: Model) -> float:
    """GB/s of bus bandwidth, of all channels."""
    between = model.graph.nvls_inter * (2 if model.group.nodes <= 2 else 1)
    reached = min(nvls.through_switches(op, model), between)
    return model.graph.heads * min(reached, most(model))


def most(model: Model) -> float:
    """GB/s per channel that a release believes in: Blackwell's on three and more hosts was lower before 2.30."""
    early = (2, 28) <= model.release < (2, 30)
    return (
        43.8
        if early and model.kind == "blackwell" and model.column == 2
        else model.tree_max(MAX)
    )


def rows(release: tuple[int, int]) -> Rows:
    """The rows of a release: steps between hosts were believed shorter before 2.28."""
    if release >= (2, 28):
        return ROWS
    return replace(ROWS, net=(0, 0, 14.0 if release >= (2, 21) else 19.0))
