"""NVLink SHARP inside every host, and the two binary trees between GPUs of the same place in theirs.

Each GPU with a NIC heads one slice of S / heads. It reads the host's sum of its slice from the switches, the slice
goes up and down two trees over the hosts (half of it each), and the result is stored into all GPUs of the host.
NCCL src/transport/nvls.cc, src/graph/trees.cc, src/device/all_reduce.h.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from prestep.sim.collectives.algorithms import nvls, tree
from prestep.sim.collectives.assemble import Bytes, Call, assemble
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.search import MAX_HEADS
from prestep.sim.collectives.nccl.tuning import Model, Rows
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, transport
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.graph.opgraph import by_link

OPS = ("all_reduce",)
PROTOS = ("Simple",)
ORDER = 5
CONNECTIONS = tree.CONNECTIONS
CHANNELS = "nvls_channels"
ROWS = Rows(base=(0, 0, 0), nvlink=(0, 0, 25.0), pci=(0, 0, 0), net=(0, 0, 20.9))
CHUNK = 131_072  # NCCL_NVLS_CHUNKSIZE; half of it from four hosts on


def plan(call: Call) -> Plan:
    """NVLink SHARP in the hosts and trees between them, with all of the channels that it has."""
    size, group, channels, fabric = call.size, call.group, call.channels, call.fabric
    heads = _heads(group)
    chunk = min(size / channels / heads, chunk_of(size, group, channels))
    key = ("nvls_tree", group.shape, heads)
    plan = assemble(
        call,
        _work(size, group, channels, chunk),
        paths.once_routed(fabric, key, lambda: _bytes(fabric, group, heads)),
        algo="nvls_tree",
        threads=nvls.THREADS,
        between=ROWS.between_hosts(call.proto),
    )
    # The first chunks of all channels share a head's NIC at every level of the tree.
    filling = max(0, _levels(group) - 1) * chunk * channels / group.remote
    return replace(
        plan,
        latency=plan.latency + tree.waits(group, call.proto) + filling,
        rate_cap=min(plan.rate_cap, _believed(fabric, group)),
    )


def _believed(fabric: Any, group: Group) -> float:
    """Payload bytes/s that NCCL's table gives the trees."""
    bus = tree.believed(
        generation_of(fabric.gpu_model).multicast_tree, group, _heads(group)
    )
    return bus * group.n / (2 * (group.n - 1))


def _levels(group: Group) -> int:
    """Hops between hosts, up and down the tree."""
    return 2 * tree.depth(group.nodes)


def _work(size: float, group: Group, channels: int, chunk: float) -> protocols.Work:
    """One hop through the switches, those between hosts, and the filling of the pipeline with chunks."""
    heads, remote, share = _heads(group), _levels(group), size / channels
    local_bytes = size * (1 + 1 / heads)
    remote_bytes = size * tree.busiest(group.nodes) / heads
    fill = max(0, remote - 1) * chunk
    step = min(share, CHUNK)
    return protocols.Work(1, remote, step, share, local_bytes, remote_bytes, fill)


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
    return max(1, min(MAX_HEADS, group.net.nics, group.smallest))


def _bytes(fabric: Any, group: Group, heads: int) -> Bytes:
    """Links, and bytes on each per payload byte: through the switches, heads once more, and the trees."""
    slices = [
        tuple(tree.turned(host, k, heads)[0] for k in range(heads))
        for host in group.hosts
    ]
    # A GPU that heads no slice only hands in the data and takes the result; heads move their slice once more.
    pairs = [
        (gpu, host[(host.index(gpu) + 1) % len(host)])
        for host, leading in zip(group.hosts, slices, strict=True)
        for gpu in leading
    ]
    through = nvls.switched(fabric, group.hosts, 1.0, 1.0)
    own = transport.halves(fabric, pairs, 1 / heads, 1 / heads)
    return by_link([through, own, group.gather(fabric, *_flows(fabric, slices))])


def _flows(
    fabric: Any, slices: list[tuple[str, ...]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both directions of both trees' edges, between the heads of each slice; `slices` has the heads by host."""
    hosts, heads = len(slices), len(slices[0])
    gpus = fabric.positions(list(chain.from_iterable(slices))).reshape(hosts, heads)
    first = tree.binary_tree(hosts)
    child, parent = np.array([*first, *tree.mirrored(first, hosts)]).T
    ends = gpus[child].ravel(), gpus[parent].ravel()
    each = np.full(2 * len(ends[0]), 0.5 / heads)
    return np.concatenate(ends), np.concatenate(ends[::-1]), each


def runs_on(op: str, group: Group, fabric: Any, settings: Nccl) -> str | None:
    """Why it cannot run, or None."""
    if group.nodes < 2:
        return "nvls_tree needs at least two hosts"
    if group.racks:
        # Evidence: guess. 1,440 GB200 take 4.5 ms longer than their bytes need: the steps of a ring, not of a tree.
        return "between racks whose hosts share NVSwitches it is taken not to run"
    return nvls.missing(group, fabric, settings)


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s in NCCL's table."""
    own = rows(model.release)
    hops = 2 * int(math.log2(model.group.nodes)) * model.between(own, proto)
    latency = model.base(own, proto) + model.inside(own, proto) + hops
    return latency, bus(op, model) * model.group.n / model.steps(op)


def corrected(op: str, size: float, proto: str, model: Model) -> tuple[float, float]:
    """Factors on latency and bandwidth: since 2.29 a tree's, on Blackwell and later beside x86 (no C2C)."""
    recent = model.release >= (2, 29) and model.kind.capability >= 100
    held = recent and not model.group.net.c2c
    return tree.corrected(op, size, proto, model) if held else (1.0, 1.0)


def bus(op: str, model: Model) -> float:
    """GB/s of bus bandwidth, of all channels."""
    between = model.graph.nvls_inter * (2 if model.group.nodes <= 2 else 1)
    reached = min(nvls.through_switches(op, model), between)
    return model.graph.heads * min(reached, model.kind.multicast_tree[model.column])


def rows(release: tuple[int, ...]) -> Rows:
    """The rows of a release: steps between hosts were believed shorter before 2.28."""
    if release >= (2, 28):
        return ROWS
    return replace(ROWS, net=(0, 0, 14.0 if release >= (2, 21) else 19.0))
