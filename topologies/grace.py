"""Grace boards: Arm CPUs joined to their GPUs by NVLink-C2C instead of PCIe (GH200, GB200)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric.wiring import (
    Checked,
    add_row,
    count,
    default_links,
    join,
    new_graph,
    plug,
    slot,
    star,
)
from prestep.topologies.host import LINKS as HOST

LINKS = HOST | default_links("grace")


@dataclass(frozen=True)
class Params(Checked):
    """What the boards are made of; defaults are one GH200.

    Attributes
    ----------
    gpu
        GPU model (`prestep list gpus`).
    hosts
        How many boards, all under one network that blocks nothing.
    gpus, cpus
        Per host; every CPU has the same number of GPUs on its C2C links.
    nvlinks
        Physical NVLinks between every two GPUs of a board, without a switch; 0 for none.
    nics, nvmes
        Per host, dealt out over the CPUs' PCIe roots in order.
    nvlink, c2c, socket, memory, pcie, nic, nvme
        One link of each kind; `c2c` joins a CPU to one GPU, `socket` two CPUs.
    """

    gpu: str = "gh200"
    hosts: int = count(1)
    gpus: int = count(1)
    cpus: int = count(1)
    nvlinks: int = count(0, least=0)
    nics: int = count(1, least=0)
    nvmes: int = count(1, least=0)
    nvlink: LinkSpec = LINKS["nvlink"]
    c2c: LinkSpec = LINKS["c2c"]
    socket: LinkSpec = LINKS["socket"]
    memory: LinkSpec = LINKS["memory"]
    pcie: LinkSpec = LINKS["pcie"]
    nic: LinkSpec = LINKS["nic"]
    nvme: LinkSpec = LINKS["nvme"]

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        if self.gpus % self.cpus:
            found = f"{self.gpus} GPUs for {self.cpus} CPUs"
            yield "gpus", found, "the same number of GPUs on every CPU"
        if self.hosts > 1 and not self.nics:
            yield "nics", "0", "at least 1, to join several hosts"


def build(params: Params) -> nx.MultiDiGraph[str]:
    r"""Boards of Grace CPUs and the GPUs on their C2C links.

    ::

                GH200                              GB200 board (compute tray)

        memory0 -- cpu0 == c2c == gpu0     memory0 -- cpu0 --- socket --- cpu1 -- memory1
                   |  \                             //  \\               //  \\     c2c
                 nic0  nvme0                      gpu0  gpu1           gpu2  gpu3   (NVLink: see nvl72)
                   |
                 network

    Host memory reaches a GPU over ``memory0 > cpu0 > gpu0`` as fast as NVLink. A GPU leaves the board through the CPU's
    PCIe root, ``gpu0 > cpu0 > nic0 > network``: there is no PCIe switch. With several hosts, names are prefixed.

    Returns
    -------
    networkx.MultiDiGraph
        `hosts * gpus` GPUs; bandwidths in bytes/s, latencies in s.

    Raises
    ------
    InputError
        If a count is too small or GPUs do not divide over the CPUs.

    References
    ----------
    NVIDIA Grace Hopper Superchip Architecture whitepaper; NVIDIA GB200 NVL Multi-Node Tuning Guide.
    """
    return star("grace", pattern, params, params.hosts)


def pattern(params: Params, host: str = "") -> nx.MultiDiGraph[str]:
    """The graph of one board without what is outside; `host` is "" for one that a larger graph repeats."""
    graph = new_graph("grace", params.gpu)
    gpus = add_row(graph, "gpu", params.gpus, host)
    cpus = add_row(graph, "cpu", params.cpus, host)
    memories = add_row(graph, "memory", params.cpus, host)
    for number, (cpu, memory) in enumerate(zip(cpus, memories, strict=True)):
        join(graph, cpu, memory, "memory", params.memory)
        for other in cpus[:number]:
            join(graph, other, cpu, "socket", params.socket)
    for number, gpu in enumerate(gpus):
        join(graph, slot(cpus, number, len(gpus)), gpu, "c2c", params.c2c)
        for other in gpus[:number] if params.nvlinks else ():
            join(graph, other, gpu, "nvlink", params.nvlink, params.nvlinks)
    plug(graph, cpus, add_row(graph, "nic", params.nics, host), "pcie", params.pcie)
    plug(graph, cpus, add_row(graph, "nvme", params.nvmes, host), "nvme", params.nvme)
    return graph
