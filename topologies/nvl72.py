"""NVL72 racks: 72 GPUs in one NVLink domain, and SuperPODs of such racks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import networkx as nx

from prestep.topologies import grace
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import wiring

LINKS = grace.LINKS | wiring.default_links("nvl72")


@dataclass(frozen=True)
class Params(wiring.Checked):
    """What the racks are made of; defaults are one GB200 NVL72.

    Attributes
    ----------
    gpu
        GPU model (`prestep list gpus`).
    hosts
        Compute trays in all; racks are filled one after the other.
    hosts_per_rack
        Compute trays that share an NVLink domain.
    gpus, cpus, nics, nvmes
        Per tray. NIC i of every tray is rail i.
    nvlinks
        Physical links from each GPU to each NVSwitch of its rack.
    spines
        Spine switches above several racks; every leaf has as many cables up as down.
    nvlink, c2c, socket, memory, pcie, nic, nvme, spine
        One link of each kind; `nic` joins a NIC to its leaf, `spine` a leaf to a spine.
    """

    gpu: str = "gb200"
    hosts: int = wiring.count(18)
    hosts_per_rack: int = wiring.count(18)
    gpus: int = 4
    cpus: int = 2
    nics: int = wiring.count(4)
    nvmes: int = 4
    nvlinks: tuple[int, ...] = wiring.counts(
        (1,) * 18, "link to every NVSwitch", least=1
    )
    spines: int = wiring.count(9)
    nvlink: LinkSpec = LINKS["nvlink"]
    c2c: LinkSpec = LINKS["c2c"]
    socket: LinkSpec = LINKS["socket"]
    memory: LinkSpec = LINKS["memory"]
    pcie: LinkSpec = LINKS["pcie"]
    nic: LinkSpec = LINKS["nic"]
    nvme: LinkSpec = LINKS["nvme"]
    spine: LinkSpec = wiring.CABLE

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        if self.hosts > self.hosts_per_rack and self.hosts_per_rack % self.spines:
            found = f"{self.spines} for leaves with {self.hosts_per_rack} ports down"
            yield "spines", found, "a divisor of hosts_per_rack: equal cables up"


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Racks of compute trays around NVSwitches; several racks join rail by rail.

    ::

                spine0    ...    spine8
               /      2 cables to each      \
          rack0/leaf0 ... rack0/leaf3      rack1/leaf0 ...      one leaf per rack and rail
           |  ...  |  one NIC of every tray
         host0/nic0 ... host17/nic0
           |
         host0/cpu0 == c2c == host0/gpu0, host0/gpu1; host0/cpu1 == host0/gpu2, host0/gpu3
                                  |
           rack0/nvswitch0 ... rack0/nvswitch17      one NVLink from every GPU to every NVSwitch

    Within a rack, 1/18 of the bytes take ``host0/gpu0 > rack0/nvswitch0 > host17/gpu3``. A GPU leaves its tray through
    the CPU: ``host0/gpu0 > host0/cpu0 > host0/nic0 > rack0/leaf0``, and from there over a spine when there are several
    racks. A single rack has no spine, so its leaves join the NICs of one rail only.

    Returns
    -------
    networkx.MultiDiGraph
        `hosts * gpus` GPUs; 8 racks are the 576-GPU SuperPOD. Each rack sends 72 x 400 Gbit/s = 3.6 TB/s. How the
        SuperPOD's ports are split over switches is a guess; its bandwidth (full bisection) is not.

    Raises
    ------
    InputError
        If a count is too small, or the leaves' cables do not divide over the spines.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture, DGX GB200: compute fabric of 576 GPUs; Austin et al., How to Scale Your
    Model, chapter 12 (node egress 3.6 TB/s).
    """
    graph = wiring.new_graph("nvl72", params.gpu, "nvl72")
    tray = grace.pattern(_board(params))
    nics = wiring.add_hosts(graph, "host", tray, copies=params.hosts)
    racks = wiring.by_units(range(params.hosts), params.hosts_per_rack)
    for rack, hosts in enumerate(racks):
        _add_nvswitches(graph, params, f"rack{rack}/nvswitch", hosts, tray)
        wiring.add_rails(graph, f"rack{rack}/leaf", hosts, nics, params.nic)
    if len(racks) > 1:
        graph.add_node("spine", kind="spine", copies=params.spines)
        cables = params.hosts_per_rack // params.spines
        for spine in range(params.spines):
            pairs = wiring.every(range(params.nics), [spine])
            for rack in range(len(racks)):
                leaf = f"rack{rack}/leaf"
                wiring.join(
                    graph, leaf, "spine", "spine", params.spine, cables, pairs=pairs
                )
    return graph


def _add_nvswitches(
    graph: nx.MultiDiGraph[str],
    params: Params,
    name: str,
    hosts: range,
    tray: nx.MultiDiGraph[str],
) -> None:
    """Adds the NVSwitches of a rack over its trays' GPUs."""
    graph.add_node(name, kind="nvswitch", copies=len(params.nvlinks))
    # Switches with as many links are one edge.
    for wires, run in groupby(range(len(params.nvlinks)), params.nvlinks.__getitem__):
        pairs = wiring.every(hosts, [*run])
        for gpu in wiring.of_kind(tray, "gpu"):
            ends = {"tail_ports": [gpu], "pairs": pairs}
            wiring.join(graph, "host", name, "nvlink", params.nvlink, wires, **ends)


def _board(params: Params) -> grace.Params:
    """A tray as `grace` builds it, without NVLinks of its own: they go to the rack's switches."""
    shared = {item.name for item in dataclasses.fields(grace.Params)} - {
        "hosts",
        "nvlinks",
    }
    values = {key: getattr(params, key) for key in shared}
    return grace.Params(hosts=1, nvlinks=0, **values)
