"""Causes of a slow log: what each would change in the cluster or in NCCL's settings.

`CAUSES` has those that come with prestep; other distributions declare modules with a `CAUSE` in the entry point group
`prestep.causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import plugins
from prestep.validation.doctor.sweep import Situation

GROUP = "prestep.causes"


@dataclass(frozen=True)
class Change:
    """One way in which a cause shows: changes of links as `--set` takes them, and settings of NCCL."""

    text: str
    links: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, Any] = field(default_factory=dict)


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
    """

    title: str
    check: str
    changes: Callable[[Situation], Sequence[Change]]
    signs: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()


def causes() -> dict[str, Cause]:
    """Returns every cause by name, sorted: prestep's own and those of other distributions.

    Raises
    ------
    InputError
        If another distribution's cannot be used.

    Examples
    --------
    >>> causes()["nic-missing"].title
    'a NIC missing'
    """
    own = {name: plugins.Plugin(__name__, Path(__file__)) for name in CAUSES}
    return {
        name.replace("_", "-"): CAUSES[name]
        if plugin.entry is None
        else plugins.imported_plugin(plugin).CAUSE
        for name, plugin in plugins.plugins_in(GROUP, own).items()
    }


def nics_of(here: Situation) -> tuple[str, ...]:
    """The NICs of the first host."""
    first = here.fabric.host_of(here.gpus[0])
    return tuple(
        nic for nic in here.fabric.nic_numbers if here.fabric.host_of(nic) == first
    )


def _algorithms(here: Situation) -> set[str]:
    """What NCCL should run for any of the sizes."""
    return {size.expected.algo for size in here.sizes}


def _slower(text: str, selector: str) -> tuple[Change, ...]:
    """Links at a half, and at a quarter, of their bandwidth."""
    shares = {"a half": "0.5x", "a quarter": "0.25x"}
    return tuple(
        Change(f"{text} at {share} of its bandwidth", {f"{selector}.bandwidth": factor})
        for share, factor in shares.items()
    )


def _narrowest(here: Situation, kind: str) -> float:
    """Bytes/s of the narrowest link of a kind; infinite where there is none."""
    links = here.fabric.links
    rates = links.bandwidth[links.kind == kind]
    return float(np.min(rates)) if len(rates) else float("inf")


def _capped_nics(here: Situation, rate: float, text: str) -> tuple[Change, ...]:
    """All NICs held to a rate; nothing where they are no faster anyway."""
    if not rate < _narrowest(here, "nic"):
        return ()
    return (Change(text, {"nic.bandwidth": f"{rate / 1e9:.6g} GB/s"}),)


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
    if here.hosts < 2 or len(nics) < 2:
        return ()
    return (Change(f"{nics[-1]} is gone", {nics[-1]: "off"}),)


def _nic_slow(here: Situation) -> Sequence[Change]:
    return _slower("one NIC", "nic[0]") if here.hosts > 1 else ()


def _no_gpudirect(here: Situation) -> Sequence[Change]:
    """A guess: the bytes pass the way between switch and CPU twice, so that it carries half of its bandwidth."""
    if here.hosts < 2:
        return ()
    text = "every byte to and from a NIC passes host memory"
    return _capped_nics(here, _narrowest(here, "pcie") / 2, text)


def _p2p_off(here: Situation) -> Sequence[Change]:
    if len(here.gpus) <= here.hosts:
        return ()
    text = "GPUs of a host talk through its memory"
    return (Change(text, nccl={"p2p_disable": True}),)


def _ring_forced(here: Situation) -> Sequence[Change]:
    others = _algorithms(here) - {"ring", "pairwise", "p2p", ""}
    return (Change("NCCL runs rings", nccl={"algo": "ring"}),) if others else ()


def _shared_spine(here: Situation) -> Sequence[Change]:
    return _slower("the spine", "spine") if here.hosts > 1 else ()


def _sharp_off(here: Situation) -> Sequence[Change]:
    """NVLink SHARP, or SHARP in the network's switches."""
    nvls = Change("NVLink SHARP is off", nccl={"nvls": False})
    collnet = Change("SHARP in the switches is off", nccl={"collnet": False})
    changes = [nvls] if {"nvls", "nvls_tree"} & _algorithms(here) else []
    return [*changes, collnet] if here.nccl.collnet else changes


def _slow_rail(here: Situation) -> Sequence[Change]:
    """A rail is the NICs of one number on all hosts, and their switch."""
    each = len(nics_of(here))
    if here.hosts < 2 or each < 2:
        return ()
    hosts = len(here.fabric.gpus_by_host)
    rail = ",".join(str(each * host) for host in range(hosts))
    return _slower("rail 0", f"nic[{rail}]")


def _tcp_fallback(here: Situation) -> Sequence[Change]:
    if here.hosts < 2 or here.fabric.cluster_facts.tcp:
        return ()
    return (Change("NCCL over TCP sockets", nccl={"net": "socket"}),)


def _wrong_numa(here: Situation) -> Sequence[Change]:
    """A guess: all NICs of a host share the link between its sockets."""
    nics = nics_of(here)
    if here.hosts < 2 or not nics:
        return ()
    text = "all NICs of a host reach their GPUs over the link between its sockets"
    return _capped_nics(here, _narrowest(here, "socket") / len(nics), text)


CAUSES = {
    "few_channels": Cause(
        "NCCL has few channels",
        "NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, NCCL_MIN_CTAS and the communicator's config; NCCL_DEBUG=INFO prints "
        "`coll channels`",
        _few_channels,
        signs=(r"NCCL_(MAX_NCHANNELS|MAX_NRINGS|MAX_CTAS) set by environment to \d+",),
    ),
    "nic_missing": Cause(
        "a NIC missing",
        "compare `NET/IB : Using` of every host (NCCL_DEBUG=INFO), NCCL_IB_HCA and `ibstat` (State: Active)",
        _nic_missing,
    ),
    "nic_slow": Cause(
        "a NIC at half width or a lower rate",
        "on every host `ibstat` (Rate), `ethtool IFACE` (Speed) and `lspci -vv` of the NIC (LnkSta: Width, Speed; "
        "downgraded); then nccl-tests on pairs of hosts, to find which",
        _nic_slow,
        signs=(r"speed degraded", r"downgraded"),
    ),
    "no_gpudirect": Cause(
        "no GPUDirect RDMA",
        "NCCL_DEBUG=INFO: connections should end in /GDRDMA; load nvidia-peermem (or use DMA-BUF), switch ACS off on "
        "the PCIe switches, and see NCCL_NET_GDR_LEVEL",
        _no_gpudirect,
        signs=(
            r"via NET/IB/\d+(?!\S*GDRDMA)\S*\s*$",
            r"GPU Direct RDMA Disabled",
            r"NCCL_NET_GDR_LEVEL set by environment to (LOC|0)\b",
        ),
        rules_out=(r"/GDRDMA",),
    ),
    "p2p_off": Cause(
        "P2P between the GPUs of a host is off",
        "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; `nvidia-smi topo -p2p r`; the fabric manager has to run where there are "
        "NVSwitches (`systemctl status nvidia-fabricmanager`)",
        _p2p_off,
        signs=(
            r"via SHM/",
            r"NCCL_P2P_DISABLE set by environment to 1",
            r"NCCL_P2P_LEVEL set by environment to (LOC|0)\b",
        ),
        rules_out=(r"via P2P/",),
    ),
    "ring_forced": Cause(
        "rings instead of a tree or NVLink SHARP",
        "NCCL_ALGO, a tuner plug-in (NCCL_TUNER_PLUGIN) or its file; NCCL_DEBUG=INFO with "
        "NCCL_DEBUG_SUBSYS=INIT,TUNING prints what is chosen",
        _ring_forced,
        signs=(r"NCCL_ALGO set by environment to \S*[Rr]ing",),
    ),
    "shared_spine": Cause(
        "a spine that is shared or lacks bandwidth",
        "run the same on hosts of one leaf, where it should be normal; look at the load and the lost cables of the "
        "switches' uplinks, and whether other jobs ran",
        _shared_spine,
    ),
    "sharp_off": Cause(
        "SHARP is off",
        "NCCL_DEBUG=INFO: `NVLS multicast support is available`; NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE; the fabric "
        "manager, IMEX on NVL72, and the driver's support of multicast",
        _sharp_off,
        signs=(
            r"NVLS multicast support is not available",
            r"NCCL_NVLS_ENABLE set by environment to 0",
            r"NCCL_COLLNET_ENABLE set by environment to 0",
        ),
    ),
    "slow_rail": Cause(
        "a slow rail",
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
            r"via NET/Socket",
            r"NCCL_IB_DISABLE set by environment to 1",
            r"NCCL_NET set by environment to Socket",
        ),
        rules_out=(
            r"via NET/(IB|AWS|OFI|Libfabric)",
            r"Using network (IB|AWS|OFI|Libf)",
        ),
    ),
    "wrong_numa": Cause(
        "a wrong NUMA or NPS setting",
        "`nvidia-smi topo -m`: every GPU needs a NIC at PIX or PXB; the BIOS should say NPS1 (or what the vendor "
        "says); bind ranks to the socket of their GPU (numactl, --cpu-bind), and give NCCL_TOPO_FILE in virtual "
        "machines",
        _wrong_numa,
    ),
}
