"""NVL72 racks: 72 GPUs in one NVLink domain, and SuperPODs of such racks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import grace
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import add_nvlinks, add_row, too_few
from prestep.topologies.host import NIC, PCIE5

_SHEET = "NVIDIA GB200 NVL72 datasheet"

NVLINK5 = LinkSpec(
    Quantity(
        41.4e9,
        "measured",
        "GB200, p2pBandwidthLatencyTest: 746 GB/s per GPU pair, 18 links (ml-engineering)",
    ),
    Quantity(
        0.3e-6,
        "guess",
        "as for NVLink4: NCCL src/graph/tuning.cc, 0.6 us per LL step between GPUs, two links",
    ),
    raw=Quantity(
        50e9,
        "datasheet",
        f"{_SHEET}: NVLink5, 18 links, 1.8 TB/s per GPU in both directions",
    ),
)
C2C = LinkSpec(
    Quantity(190e9, "guess", "about 83 % of the wire, as for the GH200"),
    Quantity(0.3e-6, "guess", "as for an NVLink hop"),
    raw=Quantity(
        225e9,
        "guess",
        f"{_SHEET}: NVLink-C2C 900 GB/s per superchip in both directions, half for each GPU",
    ),
    upstream=Quantity(150e9, "guess", "two thirds of the wire, as for the GH200"),
)
LEAF = LinkSpec(
    Quantity(
        48e9,
        "fitted",
        "NCCL src/graph/search.cc: the highest speed of one 400 Gbit/s port that it tries",
    ),
    Quantity(
        0.5e-6, "guess", "order of magnitude of an InfiniBand switch and its cable"
    ),
    raw=Quantity(50e9, "datasheet", "NVIDIA Quantum-2: NDR, 400 Gbit/s per port"),
)


@dataclass(frozen=True)
class Params:
    """What the racks are made of; defaults are one GB200 NVL72.

    Attributes
    ----------
    gpu
        GPU model, a name of `sim/costs/hardware`.
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
    hosts: int = 18
    hosts_per_rack: int = 18
    gpus: int = 4
    cpus: int = 2
    nics: int = 4
    nvmes: int = 4
    nvlinks: tuple[int, ...] = field(default=(1,) * 18)
    spines: int = 9
    nvlink: LinkSpec = NVLINK5
    c2c: LinkSpec = C2C
    socket: LinkSpec = grace.CPU_LINK
    memory: LinkSpec = grace.LPDDR
    pcie: LinkSpec = PCIE5
    nic: LinkSpec = NIC
    nvme: LinkSpec = grace.NVME
    spine: LinkSpec = LEAF

    def __post_init__(self) -> None:
        least = {"hosts": 1, "hosts_per_rack": 1, "nics": 1, "spines": 1}
        mistakes = too_few("nvl72", self, least)
        if not self.nvlinks or any(count < 1 for count in self.nvlinks):
            mistakes.append(
                Mistake(
                    "nvl72",
                    "nvlinks",
                    str(list(self.nvlinks)),
                    "at least 1 link to every NVSwitch",
                )
            )
        if (
            not mistakes
            and self.hosts > self.hosts_per_rack
            and self.hosts_per_rack % self.spines
        ):
            found = f"{self.spines} for leaves with {self.hosts_per_rack} ports down"
            mistakes.append(
                Mistake(
                    "nvl72",
                    "spines",
                    found,
                    "a divisor of hosts_per_rack: equal cables up",
                )
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    builder = FabricBuilder()
    racks = -(-params.hosts // params.hosts_per_rack)
    leaves = [_add_rack(builder, params, rack) for rack in range(racks)]
    if racks > 1:
        _add_spines(builder, params, [leaf for rack in leaves for leaf in rack])
    return builder.finish("nvl72", params.gpu, "nvl72")


def _add_rack(builder: FabricBuilder, params: Params, rack: int) -> list[str]:
    """One NVLink domain with its trays; returns its leaves, one per rail."""
    nvswitches = add_row(builder, "nvswitch", len(params.nvlinks), f"rack{rack}/")
    leaves = add_row(builder, "leaf", params.nics, f"rack{rack}/")
    board = _board(params)
    first = rack * params.hosts_per_rack
    for host in range(first, min(first + params.hosts_per_rack, params.hosts)):
        gpus, nics = grace.add_board(builder, board, f"host{host}", f"host{host}/")
        for gpu in gpus:
            add_nvlinks(builder, gpu, nvswitches, params.nvlinks, params.nvlink)
        for nic, leaf in zip(nics, leaves, strict=True):
            builder.link(nic, leaf, "nic", params.nic)
    return leaves


def _add_spines(builder: FabricBuilder, params: Params, leaves: list[str]) -> None:
    cables = params.hosts_per_rack // params.spines
    for at in range(params.spines):
        spine = builder.node(f"spine{at}", "spine")
        for leaf in leaves:
            builder.link(leaf, spine, "spine", params.spine, cables)


def _board(params: Params) -> grace.Params:
    """A tray as `grace` builds it, without NVLinks of its own: they go to the rack's switches."""
    shared = {item.name for item in dataclasses.fields(grace.Params)} - {
        "hosts",
        "nvlinks",
    }
    values = {key: getattr(params, key) for key in shared}
    return grace.Params(hosts=1, nvlinks=0, **values)
