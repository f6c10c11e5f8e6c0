"""AWS p5 hosts: every GPU shares a PCIe switch with four EFA NICs and a disk, and the way to the CPU is narrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    slot,
    too_few,
)
from prestep.topologies.host import MEMORY, NVLINK4, PCIE5, SOCKET

_EFA = "AWS p5.48xlarge: 32 EFA network interfaces of 100 Gbit/s, 3,200 Gbit/s in all"
_ASSUMED = "order of magnitude of an EFA hop with its adapter"

UPLINK = LinkSpec(
    Quantity(
        14.2e9,
        "measured",
        "AWS p5, nvbandwidth host to device (Hugging Face training playbook)",
    ),
    Quantity(
        0.35e-6,
        "guess",
        "half of the 1.4 us there and back that nvbandwidth shows on an AWS p5, over two links",
    ),
    raw=Quantity(15.754e9, "datasheet", "PCI Express 4.0: 16 GT/s, 8 lanes, 128b/130b"),
)
NIC_SLOT = LinkSpec(
    Quantity(15.4e9, "guess", "98 % of the wire; the port is slower"),
    Quantity(0.35e-6, "guess", "as for the link to the CPU"),
    raw=Quantity(
        15.754e9,
        "datasheet",
        "NCCL topology of a p5.48xlarge (aws-ofi-nccl): NICs at 16 GT/s, 8 lanes",
    ),
)
EFA = LinkSpec(
    Quantity(12.2e9, "guess", "98 % of the wire: headers of 4 KiB packets"),
    Quantity(8e-6, "guess", _ASSUMED),
    raw=Quantity(12.5e9, "datasheet", _EFA),
)
TIER = LinkSpec(
    Quantity(
        12.2e9,
        "guess",
        "as the NIC's, and as many up as NICs are below: AWS publishes no rates between its switches",
    ),
    Quantity(0.5e-6, "guess", "order of magnitude of a switch and its cable"),
    raw=Quantity(12.5e9, "guess", "as the NIC's"),
)
NVME = LinkSpec(
    Quantity(
        3.57e9,
        "measured",
        "AWS p5, gdsio -x 1 -I 1 (writing), 1 MiB over 8 disks in RAID 0: 26.59 GiB/s (playbook)",
    ),
    Quantity(20e-6, "guess", "order of magnitude of a write to an enterprise disk"),
    raw=Quantity(15.75e9, "datasheet", "lstopo on an AWS p5: the disk's slot"),
)


@dataclass(frozen=True)
class Params:
    """What the hosts are made of; defaults are a p5.48xlarge.

    Attributes
    ----------
    gpu
        GPU model, a name of `sim/costs/hardware`.
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
    hosts: int = 1
    hosts_per_leaf: int = 0
    leaves_per_spine: int = 1
    gpus: int = 8
    sockets: int = 2
    nics_per_gpu: int = 4
    nvmes_per_gpu: int = 1
    nvlinks: tuple[int, ...] = (5, 4, 4, 5)
    nvlink: LinkSpec = NVLINK4
    uplink: LinkSpec = UPLINK
    pcie: LinkSpec = PCIE5
    nic_slot: LinkSpec = NIC_SLOT
    socket: LinkSpec = SOCKET
    memory: LinkSpec = MEMORY
    nic: LinkSpec = EFA
    tier: LinkSpec = TIER
    nvme: LinkSpec = NVME

    def __post_init__(self) -> None:
        least = {
            "hosts": 1,
            "hosts_per_leaf": 0,
            "leaves_per_spine": 1,
            "gpus": 1,
            "sockets": 1,
            "nics_per_gpu": 1,
            "nvmes_per_gpu": 0,
        }
        mistakes = too_few("aws_p5", self, least)
        if any(count < 1 for count in self.nvlinks):
            mistakes.append(
                Mistake(
                    "aws_p5",
                    "nvlinks",
                    str(list(self.nvlinks)),
                    "at least 1 link to every NVSwitch",
                )
            )
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
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

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
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
    builder = FabricBuilder()
    nics = _add_hosts(builder, params)
    if params.hosts_per_leaf:
        add_switches(builder, nics, _filled(params), params.nic, params.tier)
    else:
        add_network(builder, [nic for one in nics for nic in one], params.nic)
    return builder.finish("aws-p5", params.gpu, "aws_p5")


def _add_hosts(builder: FabricBuilder, params: Params) -> list[list[str]]:
    """All hosts, which are alike; returns the NICs of each."""
    if params.hosts == 1:
        return [add_host(builder, params, "host0", "")]
    part = FabricBuilder()
    nics = add_host(part, params, "", "")
    hosts = [f"host{at}" for at in range(params.hosts)]
    builder.repeat(part, hosts)
    return [[f"{host}/{nic}" for nic in nics] for host in hosts]


def _filled(params: Params) -> list[tuple[str, ...]]:
    """The switches above every host, from the top, where each is filled before the next begins."""
    leaves = [at // params.hosts_per_leaf for at in range(params.hosts)]
    return [
        ("core0", f"spine{leaf // params.leaves_per_spine}", f"leaf{leaf}")
        for leaf in leaves
    ]


def add_switches(
    builder: FabricBuilder,
    nics: Sequence[Sequence[str]],
    above: Sequence[tuple[str, ...]],
    port: LinkSpec,
    tier: LinkSpec,
) -> None:
    """Three layers of switches; `above` has the names of those over each host, from the top to the one on its NICs."""
    carried: Counter[tuple[str, str]] = Counter()
    kinds: dict[str, str] = {}
    for ports, (core, spine, leaf) in zip(nics, above, strict=True):
        kinds |= {core: "core", spine: "spine", leaf: "leaf"}
        carried[leaf, spine] += len(ports)
        carried[spine, core] += len(ports)
    for name, kind in kinds.items():
        builder.node(name, kind)
    for ports, (_, _, leaf) in zip(nics, above, strict=True):
        for nic in ports:
            builder.link(nic, leaf, "nic", port)
    for (low, high), count in carried.items():
        builder.link(low, high, kinds[high], tier, count)


def add_host(
    builder: FabricBuilder, params: Params, name: str, prefix: str
) -> list[str]:
    """One host's nodes and inner links; returns its NICs."""
    nodes = HostNodes(builder, name, prefix)
    gpus = nodes.row("gpu", params.gpus)
    nvswitches = nodes.row("nvswitch", len(params.nvlinks))
    cpus = add_cpus(nodes, params.sockets, params.memory, params.socket)
    nics = []
    for number, gpu in enumerate(gpus):
        switch = nodes.one("pcieswitch", number)
        cpu = slot(cpus, number, len(gpus))
        builder.link(cpu, switch, "pcie", params.uplink)
        builder.link(switch, gpu, "pcie", params.pcie)
        add_nvlinks(builder, gpu, nvswitches, params.nvlinks, params.nvlink)
        nics += _add_devices(nodes, params, switch, number)
    return nics


def _add_devices(nodes: HostNodes, params: Params, switch: str, gpu: int) -> list[str]:
    """NICs and disks under the PCIe switch of GPU number `gpu`; returns the NICs."""
    nics = [nodes.one("nic", number) for number in _numbers(gpu, params.nics_per_gpu)]
    for nic in nics:
        nodes.builder.link(switch, nic, "pcie", params.nic_slot)
    for number in _numbers(gpu, params.nvmes_per_gpu):
        nodes.builder.link(switch, nodes.one("nvme", number), "nvme", params.nvme)
    return nics


def _numbers(gpu: int, each: int) -> range:
    """Numbers, in the host, of the devices beside a GPU."""
    return range(gpu * each, (gpu + 1) * each)
