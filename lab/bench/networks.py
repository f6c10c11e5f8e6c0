"""Networks of the workloads of `lab.bench.performance`, as their simulators describe them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
import numpy as np

from prestep.topologies import fat_tree, rail_optimized
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import (
    add_below,
    add_node,
    by_units,
    every,
    join,
    new_graph,
)
from prestep.topologies.foreign import astra_sim

GIB = float(1 << 30)  # ASTRA-sim's analytical network takes a GB for 2^30 bytes


WIDE = 32  # ports of `plain`'s switches each way


def link(bandwidth: float, latency: float, why: str) -> LinkSpec:
    """One link of `bandwidth` bytes/s and `latency` s."""
    return LinkSpec(Quantity(bandwidth, "guess", why), Quantity(latency, "guess", why))


def astra(**dimensions: Sequence[str | float]) -> Fabric:
    """ASTRA-sim's network file with these keys, imported as users import one."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.yml"
        path.write_text(
            "".join(
                f"{key}: [ {', '.join(map(str, values))} ]\n"
                for key, values in dimensions.items()
            )
        )
        return astra_sim.read(path)


def astra_ring(ranks: int) -> Fabric:
    """ASTRA-sim's 1-D ring: a cable of 50 GiB/s and 500 ns from each NPU to the next."""
    return astra(
        topology=["Ring"], npus_count=[ranks], bandwidth=[50.0], latency=[500.0]
    )


def astra_hierarchy(ranks: int) -> Fabric:
    """Hosts of eight under a switch of 400 GiB/s, and a switch of 50 GiB/s for each place in a host."""
    counts = [8, ranks // 8]
    return astra(
        topology=["Switch", "Switch"],
        npus_count=counts,
        bandwidth=[400.0, 50.0],
        latency=[936.25, 500.0],
    )


def switch(
    ranks: int, bandwidth: float = 400 * GIB, latency: float = 936.25e-9
) -> Fabric:
    """All GPUs under one switch; `latency` is that of each of the two links, as in ASTRA-sim.

    As its file would be imported, but for the hosts: 4,096 GPUs in one are routed a pair at a time.
    """
    graph = new_graph(f"switch-{ranks}", "h100")
    hub, cable = "switch0", link(bandwidth, latency, "ASTRA-sim, 1-D Switch")
    for at in range(ranks):
        add_node(graph, f"gpu{at}", "gpu", f"host{at}")
    add_node(graph, hub, "switch")
    for at in range(ranks):
        join(graph, f"gpu{at}", hub, "dim0", cable)
    return compile_graph(graph)


def rails(gpus: int) -> Fabric:
    """SimAI's Spectrum-X template: 100 Gbit/s and 0.5 us a link, up to 64 hosts of eight GPUs under a leaf per rail.

    In it GPUs hang on the leaf themselves: the way from GPU to NIC costs nothing here.
    """
    free = link(200e9, 0.0, "SimAI has no PCIe on this way")
    port = link(12.5e9, 0.5e-6, "SimAI, Spectrum-X template: 100 Gbit/s, 0.0005 ms")
    params = rail_optimized.Params(
        hosts=gpus // 8,
        hosts_per_group=64,
        spines=64,
        pcie=free,
        nic=port,
        spine=port,
        nvmes=0,
    )
    return compile_graph(rail_optimized.build(params))


def three_tiers(hosts: int = 1024) -> Fabric:
    """htsim's fat tree: hosts of one 100 Gbit/s NIC under switches of 16 ports, eight pods' width each way."""
    port = link(12.5e9, 1e-6, "htsim: 100 Gbit/s")
    free = link(200e9, 0.0, "the host is not simulated")
    params = fat_tree.Params(
        hosts=hosts,
        hosts_per_leaf=8,
        leaves_per_pod=8,
        spines=8,
        cores=8,
        gpus=1,
        nics=1,
        sockets=1,
        nvmes=0,
        nvlinks=(),
        gpus_per_pcie_switch=1,
        pcie=free,
        nic=port,
        spine=port,
        core=port,
    )
    return compile_graph(fat_tree.build(params))


def plain(gpus: int) -> Fabric:
    """Three tiers over GPUs with a NIC each: 32 to a leaf, 32 leaves to a pod, as many cables up as down."""
    port = link(50e9, 1e-6, "a 400 Gbit/s port")
    graph = new_graph(f"plain-{gpus}", "h100")
    add_below(graph, _host(), gpus, WIDE, port)
    pods = by_units(range(-(-gpus // WIDE)), WIDE)
    spines = [f"pod{number}/spine" for number in range(len(pods))]
    for spine in spines:
        graph.add_node(spine, kind="spine", copies=WIDE)
    for spine, leaves in zip(spines, pods, strict=True):
        pairs = every(leaves, range(WIDE))
        join(graph, "leaf", spine, "spine", port, pairs=pairs)
    # Each spine has cores of its own, the same in every pod.
    graph.add_node("core", kind="core", copies=WIDE * WIDE)
    up = [(core // WIDE, core) for core in range(WIDE * WIDE)]
    for spine in spines:
        join(graph, spine, "core", "core", port, pairs=up)
    return compile_graph(graph)


def _host() -> nx.MultiDiGraph[str]:
    """A GPU and its NIC."""
    host = new_graph("host", "h100")
    gpu, nic = add_node(host, "gpu0", "gpu"), add_node(host, "nic0", "nic")
    join(host, gpu, nic, "pcie", link(48e9, 0.35e-6, "PCIe Gen5 x16"))
    return host


def drawn_in_plain(fabric: Fabric, draw: np.random.Generator) -> list[np.ndarray]:
    """Rows of one path for each GPU of `plain` to a random other, its spine and core drawn."""
    index, size = fabric.links.index, len(fabric.gpus)
    spines, cores = draw.integers(WIDE, size=size), draw.integers(WIDE, size=size)
    others = draw.permutation(size)
    drawn = zip(others.tolist(), spines.tolist(), cores.tolist(), strict=True)
    paths = [_stops(a, b, j, k) for a, (b, j, k) in enumerate(drawn) if a != b]
    return [np.array([index[pair] for pair in pairwise(stops)]) for stops in paths]


def _stops(a: int, b: int, spine: int, core: int) -> list[str]:
    """Nodes from GPU `a` to GPU `b` of `plain`, over this spine of each pod and this core of the spine."""
    first, last = f"leaf{a // WIDE}", f"leaf{b // WIDE}"
    pods = a // WIDE**2, b // WIDE**2
    up = f"pod{pods[0]}/spine{spine}"
    between: list[str] = []
    if pods[0] != pods[1]:
        between = [up, f"core{WIDE * spine + core}", f"pod{pods[1]}/spine{spine}"]
    elif first != last:
        between = [up]
    tail = [last] if first != last else []
    begin, end = [f"host{a}/gpu0", f"host{a}/nic0"], [f"host{b}/nic0", f"host{b}/gpu0"]
    return [*begin, first, *between, *tail, *end]
