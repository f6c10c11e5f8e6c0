"""Grace boards: Arm CPUs joined to their GPUs by NVLink-C2C instead of PCIe (GH200, GB200)."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    HostNodes,
    add_network,
    plug,
    slot,
    too_few,
)
from prestep.topologies.host import NIC, NVLINK4, PCIE5

_C2C = "NVIDIA Grace Hopper whitepaper: NVLink-C2C 900 GB/s in both directions"

C2C = LinkSpec(
    Quantity(375e9, "guess", "about 83 % of the wire, as large copies get over NVLink"),
    Quantity(0.3e-6, "guess", "as for an NVLink hop"),
    raw=Quantity(450e9, "datasheet", _C2C),
    upstream=Quantity(
        300e9,
        "guess",
        "copies to the CPU are slower (NVIDIA/nvbandwidth issue 41); two thirds of the wire",
    ),
)
CPU_LINK = LinkSpec(
    Quantity(270e9, "guess", "90 % of the wire"),
    Quantity(
        0.2e-6, "guess", "a remote cache line less a local one, between two packages"
    ),
    raw=Quantity(
        300e9,
        "guess",
        "NVLink or C2C between Grace CPUs: the order of half of a GPU's C2C",
    ),
)
LPDDR = LinkSpec(
    Quantity(400e9, "guess", "about 80 % of the wire"),
    Quantity(0.1e-6, "guess", "order of magnitude of a DRAM access"),
    raw=Quantity(
        500e9,
        "datasheet",
        "NVIDIA Grace Hopper whitepaper: LPDDR5X, up to 500 GB/s with 480 GB",
    ),
)
NVME = LinkSpec(
    Quantity(4.2e9, "guess", "as measured for the disks of an Azure ND H100 v5"),
    Quantity(20e-6, "guess", "order of magnitude of a write to an enterprise disk"),
    upstream=Quantity(
        6.9e9, "guess", "as measured for the disks of an Azure ND H100 v5"
    ),
)


@dataclass(frozen=True)
class Params:
    """What the boards are made of; defaults are one GH200.

    Attributes
    ----------
    gpu
        GPU model, a name of `sim/costs/hardware`.
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
    hosts: int = 1
    gpus: int = 1
    cpus: int = 1
    nvlinks: int = 0
    nics: int = 1
    nvmes: int = 1
    nvlink: LinkSpec = NVLINK4
    c2c: LinkSpec = C2C
    socket: LinkSpec = CPU_LINK
    memory: LinkSpec = LPDDR
    pcie: LinkSpec = PCIE5
    nic: LinkSpec = NIC
    nvme: LinkSpec = NVME

    def __post_init__(self) -> None:
        least = {"hosts": 1, "gpus": 1, "cpus": 1, "nvlinks": 0, "nics": 0, "nvmes": 0}
        mistakes = too_few("grace", self, least)
        if self.cpus >= 1 and self.gpus % self.cpus:
            found, expected = (
                f"{self.gpus} GPUs for {self.cpus} CPUs",
                "the same number of GPUs on every CPU",
            )
            mistakes.append(Mistake("grace", "gpus", found, expected))
        if self.hosts > 1 and not self.nics:
            mistakes.append(
                Mistake("grace", "nics", "0", "at least 1, to join several hosts")
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
        `hosts * gpus` GPUs; bandwidths in bytes/s, latencies in s.

    Raises
    ------
    InputError
        If a count is too small or GPUs do not divide over the CPUs.

    References
    ----------
    NVIDIA Grace Hopper Superchip Architecture whitepaper; NVIDIA GB200 NVL Multi-Node Tuning Guide.
    """
    builder = FabricBuilder()
    nics: list[str] = []
    for number in range(params.hosts):
        host = f"host{number}"
        prefix = f"{host}/" if params.hosts > 1 else ""
        _, board_nics = add_board(builder, params, host, prefix)
        nics += board_nics
    if nics:
        add_network(builder, nics, params.nic)
    return builder.finish("grace", params.gpu, "grace")


def add_board(
    builder: FabricBuilder, params: Params, host: str, prefix: str = ""
) -> tuple[list[str], list[str]]:
    """Add one board's nodes and inner links to a larger cluster. Returns its GPUs (for NVSwitches) and NICs."""
    nodes = HostNodes(builder, host, prefix)
    gpus = nodes.row("gpu", params.gpus)
    cpus = _add_cpus(nodes, params)
    _join_gpus(builder, params, cpus, gpus)
    nics = nodes.row("nic", params.nics)
    plug(builder, cpus, nics, "pcie", params.pcie)
    nvmes = nodes.row("nvme", params.nvmes)
    plug(builder, cpus, nvmes, "nvme", params.nvme)
    return gpus, nics


def _add_cpus(nodes: HostNodes, params: Params) -> list[str]:
    """CPUs, each with its memory and linked to those before it."""
    cpus = nodes.row("cpu", params.cpus)
    for number, cpu in enumerate(cpus):
        nodes.builder.link(cpu, nodes.one("memory", number), "memory", params.memory)
        for other in cpus[:number]:
            nodes.builder.link(other, cpu, "socket", params.socket)
    return cpus


def _join_gpus(
    builder: FabricBuilder, params: Params, cpus: list[str], gpus: list[str]
) -> None:
    """Every GPU on the C2C link of its CPU, and on NVLinks to the GPUs before it."""
    for number, gpu in enumerate(gpus):
        builder.link(slot(cpus, number, len(gpus)), gpu, "c2c", params.c2c)
        if params.nvlinks:
            for other in gpus[:number]:
                builder.link(other, gpu, "nvlink", params.nvlink, params.nvlinks)
