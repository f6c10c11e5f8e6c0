"""One host: GPUs behind NVSwitches, and the PCIe tree that ties them to CPUs, memory, NICs and disks."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring

LINKS = wiring.default_links("host")


@dataclass(frozen=True)
class Params(wiring.Checked):
    """What a host is made of; defaults are a DGX H100 as its datasheet has it.

    Attributes
    ----------
    gpu
        GPU model (`prestep list gpus`).
    gpus, sockets, nics, nvmes
        How many; GPUs, NICs and disks are dealt out evenly, in order.
    nvlinks
        Physical links from each GPU to each NVSwitch; empty for a host without NVLink.
    peer_nvlinks
        Physical links between every two GPUs, without a switch; 0 for none.
    gpus_per_pcie_switch
        0: GPUs, NICs and disks hang on the CPU itself.
    nvlink, pcie, socket, memory, nic, nvme
        One link of each kind. `nic` is the port to the network outside, `nvme` the disk behind its PCIe slot.
    """

    gpu: str = "h100"
    gpus: int = wiring.count(8)
    nvlinks: tuple[int, ...] = wiring.counts((5, 4, 4, 5), "link to every NVSwitch")
    peer_nvlinks: int = wiring.count(0, least=0)
    sockets: int = wiring.count(2)
    gpus_per_pcie_switch: int = wiring.count(1, least=0)
    nics: int = wiring.count(8, least=0)
    nvmes: int = wiring.count(8, least=0)
    nvlink: LinkSpec = LINKS["nvlink"]
    pcie: LinkSpec = LINKS["pcie"]
    socket: LinkSpec = LINKS["socket"]
    memory: LinkSpec = LINKS["memory"]
    nic: LinkSpec = LINKS["nic"]
    nvme: LinkSpec = LINKS["nvme"]


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""One host as a graph.

    ::

           nvswitch0   nvswitch1   nvswitch2   nvswitch3
                5 \       4 |         | 4       / 5            18 NVLinks per GPU
        gpu0   gpu1   gpu2   gpu3     gpu4   gpu5   gpu6   gpu7
          |      |      |      |        |      |      |      |
        sw0    sw1    sw2    sw3      sw4    sw5    sw6    sw7   PCIe switches, each with a NIC and a disk:
            \    \    /    /            \    \    /    /        sw0 -- nic0 -- network, sw0 -- nvme0
        memory0 -- cpu0 ------ socket ------ cpu1 -- memory1

    A DGX H100 sends from gpu0 to gpu1 over ``gpu0 > nvswitch0 > gpu1`` (5/18 of the bytes), and as many over nvswitch3;
    nvswitch1 and nvswitch2 carry 4/18 each. Host memory reaches gpu5 over ``memory1 > cpu1 > pcieswitch5 > gpu5``.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes ``gpu0``, ``nvswitch0``, ``pcieswitch0``, ``cpu0``, ``memory0``, ``nic0``, ``nvme0``, ``network``;
        bandwidths in bytes/s, latencies in s. Every GPU has as many links to one NVSwitch as every other GPU.

    Raises
    ------
    InputError
        If a count is too small, or a number of a link is not positive.

    References
    ----------
    NVIDIA DGX H100 User Guide (GPU and NIC of one PCIe switch: table of network modules); NVIDIA H100
    whitepaper (NVSwitch).
    """
    return wiring.star("host", pattern, params)


def pattern(params: Params, host: str = "") -> nx.MultiDiGraph[str]:
    """The graph of one host without what is outside; `host` is "" for one that a larger graph repeats."""
    graph = wiring.new_graph("host", params.gpu)
    gpus = wiring.add_row(graph, "gpu", params.gpus, host)
    nvswitches = wiring.add_row(graph, "nvswitch", len(params.nvlinks), host)
    for gpu in gpus:
        wiring.add_nvlinks(graph, gpu, nvswitches, params.nvlinks, params.nvlink)
    if params.peer_nvlinks:
        wiring.join_all(graph, gpus, "nvlink", params.nvlink, params.peer_nvlinks)
    # What devices plug into: PCIe switches under the CPUs, or the CPUs themselves.
    slots = cpus = wiring.add_cpus(
        graph, params.sockets, params.memory, params.socket, host
    )
    if params.gpus_per_pcie_switch:
        switches = -(-params.gpus // params.gpus_per_pcie_switch)
        slots = wiring.add_row(graph, "pcieswitch", switches, host)
        wiring.plug(graph, cpus, slots, "pcie", params.pcie)
    nics = wiring.add_row(graph, "nic", params.nics, host)
    nvmes = wiring.add_row(graph, "nvme", params.nvmes, host)
    wiring.plug(graph, slots, gpus, "pcie", params.pcie)
    wiring.plug(graph, slots, nics, "pcie", params.pcie)
    wiring.plug(graph, slots, nvmes, "nvme", params.nvme)
    return graph
