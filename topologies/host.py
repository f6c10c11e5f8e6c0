"""One host: GPUs behind NVSwitches, and the PCIe tree that ties them to CPUs, memory, NICs and disks."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import (
    HostNodes,
    add_cpus,
    add_network,
    add_nvlinks,
    add_pairs,
    plug,
    too_few,
)

_NVLINK4 = "NVIDIA H100 whitepaper: 18 NVLink4 links of 25 GB/s per direction, 900 GB/s per GPU in both"
_PCIE5 = "PCI Express 5.0: 32 GT/s, 16 lanes, 128b/130b"
_TREE = "half of the 1.4 us there and back that nvbandwidth shows on an AWS p5, over two links"

# Datasheet defaults; the files in clusters/ put measurements in their place.
NVLINK4 = LinkSpec(
    Quantity(20.6e9, "fitted", "NCCL src/graph/topo.h: sm90 NVLink"),
    Quantity(
        0.3e-6,
        "guess",
        "NCCL src/graph/tuning.cc: 0.6 us per LL step between GPUs, over two links",
    ),
    raw=Quantity(25e9, "datasheet", _NVLINK4),
)
PCIE5 = LinkSpec(
    Quantity(48e9, "fitted", "NCCL src/graph/topo.cc: Gen5 x16"),
    Quantity(0.35e-6, "guess", _TREE),
    raw=Quantity(63e9, "datasheet", _PCIE5),
)
SOCKET = LinkSpec(
    Quantity(115e9, "guess", "80 % of the wire"),
    Quantity(
        0.1e-6, "guess", "order of magnitude of a remote cache line less a local one"
    ),
    raw=Quantity(
        144e9,
        "guess",
        "Intel UPI 2.0: 16 GT/s x 24 lanes = 48 GB/s (datasheet); three links are a guess",
    ),
)
MEMORY = LinkSpec(
    Quantity(250e9, "guess", "about 80 % of the DIMMs"),
    Quantity(0.1e-6, "guess", "order of magnitude of a DRAM access"),
    raw=Quantity(
        307.2e9, "datasheet", "Intel Xeon Platinum 8480C: 8 channels of DDR5-4800"
    ),
)
NIC = LinkSpec(
    Quantity(
        48e9,
        "fitted",
        "NCCL src/graph/search.cc: the highest speed tried between hosts on sm90",
    ),
    Quantity(1e-6, "guess", "order of magnitude of an InfiniBand hop with its adapter"),
    raw=Quantity(50e9, "datasheet", "NVIDIA ConnectX-7: 400 Gbit/s"),
)
NVME = LinkSpec(
    Quantity(
        4.2e9,
        "measured",
        "Azure ND H100 v5, fio 1 MiB sequential write: 33.9 GB/s over 8 disks",
    ),
    Quantity(20e-6, "guess", "order of magnitude of a write to an enterprise disk"),
    upstream=Quantity(
        6.9e9,
        "measured",
        "Azure ND H100 v5, fio 1 MiB sequential read: 55.3 GB/s over 8 disks",
    ),
)


@dataclass(frozen=True)
class Params:
    """What a host is made of; defaults are a DGX H100 as its datasheet has it.

    Attributes
    ----------
    gpu
        GPU model, a name of `sim/costs/hardware`.
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
    gpus: int = 8
    nvlinks: tuple[int, ...] = (5, 4, 4, 5)
    peer_nvlinks: int = 0
    sockets: int = 2
    gpus_per_pcie_switch: int = 1
    nics: int = 8
    nvmes: int = 8
    nvlink: LinkSpec = NVLINK4
    pcie: LinkSpec = PCIE5
    socket: LinkSpec = SOCKET
    memory: LinkSpec = MEMORY
    nic: LinkSpec = NIC
    nvme: LinkSpec = NVME

    def __post_init__(self) -> None:
        least = {
            "gpus": 1,
            "sockets": 1,
            "gpus_per_pcie_switch": 0,
            "nics": 0,
            "nvmes": 0,
            "peer_nvlinks": 0,
        }
        mistakes = too_few("host", self, least)
        if any(count < 1 for count in self.nvlinks):
            mistakes.append(
                Mistake(
                    "host",
                    "nvlinks",
                    str(list(self.nvlinks)),
                    "at least 1 link to every NVSwitch",
                )
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    builder = FabricBuilder()
    nics = add_host(builder, params, "host0")
    if nics:
        add_network(builder, nics, params.nic)
    return builder.finish("host", params.gpu, "host")


def add_host(
    builder: FabricBuilder, params: Params, host: str, prefix: str = ""
) -> list[str]:
    """Add one host's nodes and inner links to a larger cluster; names get `prefix`. Returns its NICs, to be cabled."""
    nodes = HostNodes(builder, host, prefix)
    gpus = nodes.row("gpu", params.gpus)
    _join_gpus(nodes, params, gpus)
    cpus = add_cpus(nodes, params.sockets, params.memory, params.socket)
    slots = _slots(nodes, params, cpus)
    nics = nodes.row("nic", params.nics)
    nvmes = nodes.row("nvme", params.nvmes)
    plug(builder, slots, gpus, "pcie", params.pcie)
    plug(builder, slots, nics, "pcie", params.pcie)
    plug(builder, slots, nvmes, "nvme", params.nvme)
    return nics


def _join_gpus(nodes: HostNodes, params: Params, gpus: list[str]) -> None:
    """NVLinks between the GPUs: through NVSwitches, or from one to another."""
    nvswitches = nodes.row("nvswitch", len(params.nvlinks))
    for gpu in gpus:
        add_nvlinks(nodes.builder, gpu, nvswitches, params.nvlinks, params.nvlink)
    if params.peer_nvlinks:
        add_pairs(nodes.builder, gpus, "nvlink", params.nvlink, params.peer_nvlinks)


def add_hosts(builder: FabricBuilder, params: Params, count: int) -> list[list[str]]:
    """Add `count` hosts that are all alike, ``host0/gpu0`` and so on; returns the NICs of each, to be cabled."""
    part = FabricBuilder()
    nics = add_host(part, params, "")
    hosts = [f"host{at}" for at in range(count)]
    builder.repeat(part, hosts)
    return [[f"{host}/{nic}" for nic in nics] for host in hosts]


def _slots(nodes: HostNodes, params: Params, cpus: list[str]) -> list[str]:
    """What devices plug into: PCIe switches under the CPUs, or the CPUs themselves."""
    if not params.gpus_per_pcie_switch:
        return cpus
    switches = nodes.row("pcieswitch", -(-params.gpus // params.gpus_per_pcie_switch))
    plug(nodes.builder, cpus, switches, "pcie", params.pcie)
    return switches
