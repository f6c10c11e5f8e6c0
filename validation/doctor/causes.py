"""Causes of a slow log: what each would change in the cluster or in NCCL's settings.

`CAUSES` has those that come with prestep; other distributions declare modules with a `CAUSE` in the entry point group
`prestep.causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prestep.sim import plugins
from prestep.validation.doctor import choices, faults
from prestep.validation.doctor.host_lines import (
    far_nics,
    few_nics,
    nics_of,
    slow_nic,
)
from prestep.validation.doctor.sweep import Change, Situation

GROUP = "prestep.causes"


@dataclass(frozen=True)
class Cause:
    """Something that makes collectives slow.

    Attributes
    ----------
    title : str
        What it is.
    check : str
        What to look at next, to be sure.
    changes : callable
        The ways in which it could show in a situation; none where it cannot.
    signs, rules_out : tuple of str
        Regular expressions of lines of a log that show it, and that show that it is not so.
    shows : callable or None
        Whether a line of a log shows it in a situation, where that depends on the cluster.
    reports : int
        How many of the public threads that tune the doctor end with it (lab/cases/doctor): how common it is.
    """

    title: str
    check: str
    changes: Callable[[Situation], Sequence[Change]]
    signs: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()
    shows: Callable[[Situation, str], bool] | None = None
    reports: int = 0


def causes() -> dict[str, Cause]:
    """Returns every cause by name, sorted: prestep's own and those of other distributions.

    Raises
    ------
    InputError
        If another distribution's cannot be used.

    Examples
    --------
    >>> causes()["nic-missing"].title
    'NICs missing, or not used'
    """
    own = {name: plugins.Plugin(__name__, Path(__file__)) for name in CAUSES}
    return {
        name.replace("_", "-"): CAUSES[name]
        if plugin.entry is None
        else plugins.imported_plugin(plugin).CAUSE
        for name, plugin in plugins.plugins_in(GROUP, own).items()
    }


def _numbered(here: Situation, numbers: Sequence[int]) -> str:
    """The selector of the NICs of these numbers on every host."""
    each, hosts = len(nics_of(here)), len(here.fabric.gpus_by_host)
    chosen = (str(each * host + number) for host in range(hosts) for number in numbers)
    return f"nic[{','.join(chosen)}]"


def _algorithms(here: Situation) -> set[str]:
    """What NCCL should run for any of the sizes."""
    return {size.expected.algo for size in here.sizes}


def _slower(text: str, *selectors: str, local: bool = False) -> tuple[Change, ...]:
    """Links at a half, and at a quarter, of their bandwidth."""
    shares = {"a half": "0.5x", "a quarter": "0.25x"}
    return tuple(
        Change(
            f"{text} at {share} of its bandwidth",
            {f"{selector}.bandwidth": factor for selector in selectors},
            local=local,
        )
        for share, factor in shares.items()
    )


def _few_channels(here: Situation) -> Sequence[Change]:
    most = max(size.expected.channels for size in here.sizes)
    variables = {"max_channels": "MAX_NCHANNELS"}
    if {"nvls", "nvls_tree"} & _algorithms(here):
        variables["max_ctas"] = "MAX_CTAS"  # which limits NVLink SHARP too
    return tuple(
        Change(f"NCCL_{variable}={count}", nccl={key: count})
        for key, variable in variables.items()
        for count in (1, 2, 3, 4, 6, 8, 10, 12, 16, 24)
        if count < most
    )


def _nic_missing(here: Situation) -> Sequence[Change]:
    nics = nics_of(here)
    if len(nics) < 2:
        return ()
    unused = {"half": range(1, len(nics), 2), "one": range(1, len(nics))}
    return (
        Change(f"{nics[-1]} is gone", {nics[-1]: "off"}, local=True),
        *(
            Change(f"every host uses {used} of its NICs", {_numbered(here, off): "off"})
            for used, off in unused.items()
        ),
    )


def _nic_slow(here: Situation) -> Sequence[Change]:
    """A NIC, or all of them; where they have a port in each of several planes, one plane down."""
    one, every = _slower("one NIC", "nic[0]", local=True), _slower("every NIC", "nic")
    plane = Change("a plane is down", {"plane0": "off"})
    return (*one, *every, plane) if nics_of(here) else ()


def _no_gpudirect(here: Situation) -> Sequence[Change]:
    """Staged in the host's memory; where CPUs stand between, NCCL's search finds fewer rings too."""
    if here.hosts < 2:
        return ()
    text = "every byte to and from a NIC passes host memory"
    fewer = (
        Change(
            f"{text}, and NCCL finds {count} rings",
            nccl={"net_gdr_level": "LOC", "max_channels": count, "nvls": False},
        )
        for count in (1, 2)
    )
    return (Change(text, nccl={"net_gdr_level": "LOC"}), *fewer)


def _p2p_off(here: Situation) -> Sequence[Change]:
    if len(here.gpus) <= here.hosts:
        return ()
    text = "GPUs of a host talk through its memory"
    none = {"p2p_disable": True, "shm_disable": True}
    return (
        Change(text, nccl={"p2p_disable": True}),
        Change("GPUs of a host talk over the network", nccl=none),
    )


def _pcie_narrow(here: Situation) -> Sequence[Change]:
    return (
        *_slower("the PCIe of every GPU and NIC", "pcie"),
        *_slower("the PCIe of one host", "pcie[host0]", local=True),
    )


def _sharp_off(here: Situation) -> Sequence[Change]:
    """NVLink SHARP, or SHARP in the network's switches."""
    nvls = Change("NVLink SHARP is off", nccl={"nvls": False})
    collnet = Change("SHARP in the switches is off", nccl={"collnet": False})
    changes = [nvls] if {"nvls", "nvls_tree"} & _algorithms(here) else []
    return [*changes, collnet] if here.nccl.collnet else changes


def _slow_host(here: Situation) -> Sequence[Change]:
    return (
        _slower("one host's NICs", "nic[host0]", local=True) if here.hosts > 1 else ()
    )


def _throttled(here: Situation) -> Sequence[Change]:
    """GPUs that run below their clock; collectives alone hardly notice."""
    places = (("one host", "gpu[host0].clock"), ("all hosts", "gpu.clock"))
    return tuple(
        Change(f"GPUs of {whose} at {share:.0%} of their clock", {key: f"{share}x"})
        for whose, key in (places if here.hosts > 1 else places[1:])
        for share in (0.85, 0.7)
        if here.steps
    )


def _slow_rail(here: Situation) -> Sequence[Change]:
    """A rail is the NICs of one number on all hosts, and their switch."""
    if len(nics_of(here)) < 2:
        return ()
    rail = _numbered(here, [0])
    return (*_slower("rail 0", rail), Change("rail 0 is down", {rail: "off"}))


def _tcp_fallback(here: Situation) -> Sequence[Change]:
    sockets = Change("NCCL over TCP sockets", nccl={"net": "socket"})
    tcp = here.fabric.cluster_facts.tcp
    return () if tcp or here.hosts < 2 else (sockets,)


def _wrong_choice(here: Situation) -> Sequence[Change]:
    """Another algorithm or protocol than NCCL's own choice."""
    ran = _algorithms(here)
    algorithms = () if ran <= {"pairwise", "p2p", ""} else ("ring", "tree")
    logged = choices.logged(here)
    return (
        *([Change("NCCL runs what its log says", by_row=logged)] if logged else []),
        *(
            Change(f"NCCL runs {algo}s only", nccl={"algo": algo})
            for algo in algorithms
            if ran - {algo}
        ),
        *(
            Change(f"NCCL runs {proto} only", nccl={"proto": proto})
            for proto in ("LL", "LL128", "Simple")
            if any(size.expected.proto != proto for size in here.sizes)
        ),
    )


def _wrong_numa(here: Situation) -> Sequence[Change]:
    """A guess: all NICs of a host share the link between its sockets."""
    nics, links = nics_of(here), here.fabric.links
    sockets = links.bandwidth[links.kind == "socket"]
    if not nics or not len(sockets):
        return ()
    rate = float(np.min(sockets)) / len(nics)
    text = "all NICs of a host reach their GPUs over the link between its sockets"
    if not rate < np.min(links.bandwidth[links.kind == "nic"]):
        return ()
    return (Change(text, {"nic.bandwidth": f"{rate / 1e9:.6g} GB/s"}),)


CAUSES = {
    "few_channels": Cause(
        "NCCL has few channels",
        "NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, NCCL_MIN_CTAS and the communicator's config; NCCL_DEBUG=INFO prints "
        "`coll channels`",
        _few_channels,
        signs=(r"NCCL_(MAX_NCHANNELS|MAX_NRINGS|MAX_CTAS) set by environment to \d+",),
    ),
    "lossy_network": Cause(
        "packets that are lost or held back",
        "on RoCE PFC and ECN of NICs and switches (`mlnx_qos -i IFACE`, `cma_roce_tos`, NCCL_IB_TC); counters of "
        "`ethtool -S` and hw_counters that grow during a run (out_of_sequence, rx_discards_phy); adaptive routing",
        lambda here: (),  # nothing says what it costs: only lines show it
        signs=(
            r"(rx_discards_phy|out_of_sequence|packet_seq_err|local_ack_timeout_err|roce_adp_retrans)\s*:\s*[1-9]",
            r"retry exceeded|status=12\b",
        ),
    ),
    "small_frames": Cause(
        "small frames: an MTU of 1500 on RoCE",
        "`ibv_devinfo` (active_mtu: 4096 where the interface has 9000) on every host, and the switches' ports",
        lambda here: (),  # nothing says what it costs: only lines show it
        signs=(r"active_mtu:\s*(256|512|1024)\b",),
    ),
    "nic_missing": Cause(
        "NICs missing, or not used",
        "compare `NET/IB : Using` of every host (NCCL_DEBUG=INFO), NCCL_IB_HCA and `ibstat` (State: Active)",
        _nic_missing,
        shows=few_nics,
        reports=1,
    ),
    "nic_slow": Cause(
        "NICs at half width or a lower rate, or a plane down",
        "on every host `ibstat` (Rate), `ethtool IFACE` (Speed) and `lspci -vv` of the NIC (LnkSta: Width, Speed; "
        "downgraded); then nccl-tests on pairs of hosts, to find which",
        _nic_slow,
        signs=(r"speed degraded",),
        shows=slow_nic,
        reports=1,
    ),
    "no_gpudirect": Cause(
        "no GPUDirect RDMA",
        "NCCL_DEBUG=INFO: connections should end in /GDRDMA; load nvidia-peermem (which NCCL sees from 2.23.4 on) "
        "or use DMA-BUF, switch ACS off on the PCIe switches (in virtual machines: ATS on), and see NCCL_NET_GDR_LEVEL",
        _no_gpudirect,
        signs=(
            r"via NET/IB/\d+(?!\S*GDRDMA)\S*\s*$",
            r"GPU Direct RDMA Disabled",
            r"NCCL_NET_GDR_(LEVEL set by environment to (LOC|0)|READ set by environment to 0)\b",
            r"ACSCtl:\s*SrcValid\+",
            r"disabling GDR",
        ),
        rules_out=(r"/GDRDMA",),
        reports=7,
    ),
    "known_fault": Cause(
        "a known fault of this version of NCCL",
        "the thread says which version mends it, or which setting avoids it",
        faults.changes,
        reports=3,
    ),
    "pcie_narrow": Cause(
        "PCIe at half width or a lower generation",
        "on every host `lspci -vv` of GPUs, NICs and the switches between (LnkSta: Width, Speed), MaxReadReq, relaxed "
        "ordering, and the NIC's MAX_ACC_OUT_READ (`mlxconfig -d DEV q`)",
        _pcie_narrow,
        signs=(r"LnkSta:.*downgraded",),
    ),
    "p2p_off": Cause(
        "P2P between the GPUs of a host is off",
        "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; `nvidia-smi topo -p2p r`; the fabric manager has to run where there are "
        "NVSwitches (`systemctl status nvidia-fabricmanager`)",
        _p2p_off,
        signs=(
            r"via SHM/",
            r"NCCL_P2P_DISABLE set by environment to 1",
            r"P2P is disabled between|Could not enable P2P",
            r"NCCL_P2P_LEVEL set by environment to (LOC|0)\b",
        ),
        rules_out=(r"via P2P/",),
        reports=1,
    ),
    "shared_spine": Cause(
        "a spine that is shared or lacks bandwidth",
        "run the same on hosts of one leaf, where it should be normal; look at the load and the lost cables of the "
        "switches' uplinks, and whether other jobs ran",
        lambda here: _slower("the spine", "spine"),
    ),
    "sharp_off": Cause(
        "SHARP is off",
        "NCCL_DEBUG=INFO: `NVLS multicast support is available`; NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE; the fabric "
        "manager, IMEX on NVL72, and the driver's support of multicast",
        _sharp_off,
        signs=(
            r"NVLS multicast support is not available|Failed to bind NVLink SHARP",
            r"nvidia-fabricmanager.*(inactive|failed)",
            r"NCCL_NVLS_ENABLE set by environment to 0",
            r"NCCL_COLLNET_ENABLE set by environment to 0",
        ),
        reports=2,
    ),
    "slow_host": Cause(
        "a slow host",
        "nccl-tests on pairs of hosts, to find which; then its NICs' rates, PCIe and BIOS (NPS, power)",
        _slow_host,
    ),
    "slow_rail": Cause(
        "a slow rail, or one that is down",
        "run nccl-tests on each rail alone (NCCL_IB_HCA=mlx5_N on every host); look at the errors and pauses of the "
        "rail's switch",
        _slow_rail,
    ),
    "tcp_fallback": Cause(
        "TCP sockets instead of RDMA",
        "look for `Using network` in NCCL_DEBUG=INFO; NCCL_IB_DISABLE, NCCL_NET, the network plug-in "
        "(libnccl-net.so) in the container, /dev/infiniband in it, and `ulimit -l`",
        _tcp_fallback,
        signs=(
            r"[Uu]sing network Socket",
            r"NET/Socket : Using|Failed to open libibverbs",
            r"via NET/Socket",
            r"NCCL_IB_DISABLE set by environment to 1",
            r"NCCL_NET set by environment to Socket",
            r"Selected [Pp]rovider is (tcp|sockets|udp)",
        ),
        rules_out=(
            r"via NET/(IB|AWS|OFI|Libfabric)",
            r"Using network (IB|AWS|OFI|Libf)",
        ),
        reports=4,
    ),
    "throttled": Cause(
        "throttled GPUs: heat, or a power brake",
        "`nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` on every host under load: slowdown reasons, SM clock",
        _throttled,
        signs=(
            r"(HW Slowdown|Thermal Slowdown|Power Brake Slowdown|Power Brake)\s*:\s*Active",
        ),
    ),
    "wrong_choice": Cause(
        "another algorithm or protocol than NCCL's own choice",
        "NCCL_ALGO, NCCL_PROTO, a tuner plug-in (NCCL_TUNER_PLUGIN) or its file; NCCL_DEBUG=INFO with "
        "NCCL_DEBUG_SUBSYS=INIT,TUNING prints what is chosen",
        _wrong_choice,
        signs=(r"NCCL_(ALGO|PROTO) set by environment to",),
        shows=choices.differs,
    ),
    "wrong_numa": Cause(
        "a wrong NUMA or NPS setting",
        "`nvidia-smi topo -m`: every GPU needs a NIC at PIX or PXB; the BIOS should say NPS1 (or what the vendor "
        "says); bind ranks to the socket of their GPU (numactl, --cpu-bind), and give NCCL_TOPO_FILE in virtual "
        "machines",
        _wrong_numa,
        shows=far_nics,
        reports=1,
    ),
}
