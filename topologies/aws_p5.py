"""AWS p5 hosts: every GPU shares a PCIe switch with four EFA NICs and a disk, and the way to the CPU is narrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring
from prestep.topologies.host import LINKS as HOST

LINKS = HOST | wiring.default_links("aws_p5")


@dataclass(frozen=True)
class Params(wiring.Checked):
    """What the hosts are made of; defaults are a p5.48xlarge.

    Attributes
    ----------
    gpu
        GPU model (`prestep list gpus`).
    hosts
        How many instances.
    hosts_per_leaf, leaves_per_spine
        Instances under one switch of the lowest of three layers, and such switches under one of the next, filled one
        after the other; the third layer is one switch. 0 hosts: one network that blocks nothing instead.
    gpus, sockets
        Per host; each GPU has a PCIe switch of its own, dealt out over the sockets in order.
    nics_per_gpu, nvmes_per_gpu
        Behind the same PCIe switch.
    nvlinks
        Physical links from each GPU to each NVSwitch.
    nvlink, uplink, pcie, nic_slot, socket, memory, nic, tier, nvme
        One link of each kind: `uplink` from the CPU to a PCIe switch, `pcie` from there to the GPU, `nic_slot` from
        there to a NIC, `nic` the NIC's port, `tier` between switches.
    """

    gpu: str = "h100"
    hosts: int = wiring.count(1)
    hosts_per_leaf: int = wiring.count(0, least=0)
    leaves_per_spine: int = wiring.count(1)
    gpus: int = wiring.count(8)
    sockets: int = wiring.count(2)
    nics_per_gpu: int = wiring.count(4)
    nvmes_per_gpu: int = wiring.count(1, least=0)
    nvlinks: tuple[int, ...] = wiring.counts((5, 4, 4, 5), "link to every NVSwitch")
    nvlink: LinkSpec = LINKS["nvlink"]
    uplink: LinkSpec = LINKS["uplink"]
    pcie: LinkSpec = LINKS["pcie"]
    nic_slot: LinkSpec = LINKS["nic_slot"]
    socket: LinkSpec = LINKS["socket"]
    memory: LinkSpec = LINKS["memory"]
    nic: LinkSpec = LINKS["nic"]
    tier: LinkSpec = LINKS["tier"]
    nvme: LinkSpec = LINKS["nvme"]


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Hosts of PCIe switches that hold a GPU, four NICs and a disk each, under one network.

    ::

        memory0 -- cpu0 ----- socket ----- cpu1 -- memory1
                  / |  \ \                / |  \ \          PCIe 4.0 x8: 14.2 GB/s
         pcieswitch0 ... pcieswitch3   pcieswitch4 ... pcieswitch7
            |    |     \
          gpu0  nvme0   nic0 nic1 nic2 nic3 -- network      PCIe 5.0 x16 to the GPU, 100 Gbit/s per NIC
            |
          nvswitch0 ... nvswitch3                           5 + 4 + 4 + 5 NVLinks per GPU

    Host memory reaches gpu5 over ``memory1 > cpu1 > pcieswitch5 > gpu5``, at 14.2 GB/s. gpu0 sends to another host over
    its own four NICs, without the CPU: ``gpu0 > pcieswitch0 > nic0 > network``. With several hosts, names are prefixed:
    ``host1/gpu0``.

    Returns
    -------
    networkx.MultiDiGraph
        `hosts * gpus` GPUs; bandwidths in bytes/s, latencies in s. Without `hosts_per_leaf` the network carries all
        ports at full rate. With it ``leaf0``, ``spine0`` and ``core0`` are the layers of EC2's instance topology, each
        with as much bandwidth up as down.

    Raises
    ------
    InputError
        If a count is too small, or a number of a link is not positive.

    References
    ----------
    Amazon EC2 User Guide, instance topology: three network nodes over an instance, from the top to its own.
    aws-ofi-nccl, topology/p5.48xl-topo.xml (GPU and four NICs per PCIe switch); Hugging Face, The Smol Training
    Playbook, infrastructure chapter (two sockets, Gen4 x8 to the CPU, measurements).
    """
    if params.hosts_per_leaf:
        return _layered(params)
    return wiring.star("aws-p5", pattern, params, params.hosts)


def _layered(params: Params) -> nx.MultiDiGraph[str]:
    """Hosts under three layers of switches, each of which is filled before the next begins."""
    graph = wiring.new_graph("aws-p5", params.gpu, "aws_p5")
    hosts, one = [f"host{number}" for number in range(params.hosts)], pattern(params)
    alone = {"prefix": ""} if params.hosts == 1 else {}
    for host in hosts:
        wiring.add_hosts(graph, host, one, **alone)
    leaves = [number // params.hosts_per_leaf for number in range(params.hosts)]
    above = [
        ("core0", f"spine{leaf // params.leaves_per_spine}", f"leaf{leaf}")
        for leaf in leaves
    ]
    add_switches(graph, hosts, above, params.nic, params.tier)
    return graph


def add_switches(
    graph: nx.MultiDiGraph[str],
    hosts: Sequence[str],
    above: Sequence[tuple[str, ...]],
    port: LinkSpec,
    tier: LinkSpec,
) -> None:
    """Three layers of switches; `above` has the names of those over each host, from the top to the one on its NICs."""
    carried: Counter[tuple[str, str]] = Counter()
    kinds: dict[str, str] = {}
    nics = [wiring.of_kind(graph.nodes[host]["pattern"], "nic") for host in hosts]
    for ports, (core, spine, leaf) in zip(nics, above, strict=True):
        kinds |= {core: "core", spine: "spine", leaf: "leaf"}
        carried[leaf, spine] += len(ports)
        carried[spine, core] += len(ports)
    for name, kind in kinds.items():
        graph.add_node(name, kind=kind)
    for host, ports, (_, _, leaf) in zip(hosts, nics, above, strict=True):
        wiring.join(graph, host, leaf, "nic", port, tail_ports=ports)
    for (low, high), cables in carried.items():
        wiring.join(graph, low, high, kinds[high], tier, cables)


def pattern(params: Params, host: str = "") -> nx.MultiDiGraph[str]:
    """The graph of one host without what is outside; `host` is "" for one that a larger graph repeats."""
    graph = wiring.new_graph("aws-p5", params.gpu)
    gpus = wiring.add_row(graph, "gpu", params.gpus, host)
    nvswitches = wiring.add_row(graph, "nvswitch", len(params.nvlinks), host)
    cpus = wiring.add_cpus(graph, params.sockets, params.memory, params.socket, host)
    for number, gpu in enumerate(gpus):
        switch = f"pcieswitch{number}"
        graph.add_node(switch, kind="pcieswitch", host=host)
        wiring.join(
            graph, wiring.slot(cpus, number, len(gpus)), switch, "pcie", params.uplink
        )
        wiring.join(graph, switch, gpu, "pcie", params.pcie)
        wiring.add_nvlinks(graph, gpu, nvswitches, params.nvlinks, params.nvlink)
        # NICs and disks behind the same PCIe switch, numbered through the host.
        devices = (
            ("nic", "pcie", params.nics_per_gpu, params.nic_slot),
            ("nvme", "nvme", params.nvmes_per_gpu, params.nvme),
        )
        for kind, link, each, spec in devices:
            names = [f"{kind}{at}" for at in range(number * each, (number + 1) * each)]
            graph.add_nodes_from(names, kind=kind, host=host)
            wiring.plug(graph, [switch], names, link, spec)
    return graph
