"""Causes of a slow log: what each would change in the cluster or in NCCL's settings.

`CAUSES` has those that come with prestep (`causes.toml`); other distributions declare modules with a `CAUSE` in the
entry point group `prestep.causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import plugins, schema
from prestep.sim.schema import Items, Number, Table, Text
from prestep.validation.doctor import choices, faults
from prestep.validation.doctor.host_lines import (
    far_nics,
    few_nics,
    nics_of,
    slow_nic,
)
from prestep.validation.doctor.sweep import Change, Situation

GROUP = "prestep.causes"
FILE = Path(__file__).parent / "causes.toml"


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


#: What each cause would change; of those that are not here nothing says what it costs: only lines show them.
_CHANGES: dict[str, Callable[[Situation], Sequence[Change]]] = {
    "few_channels": _few_channels,
    "nic_missing": _nic_missing,
    "nic_slow": _nic_slow,
    "no_gpudirect": _no_gpudirect,
    "known_fault": faults.changes,
    "pcie_narrow": _pcie_narrow,
    "p2p_off": _p2p_off,
    "shared_spine": lambda here: _slower("the spine", "spine"),
    "sharp_off": _sharp_off,
    "slow_host": _slow_host,
    "slow_rail": _slow_rail,
    "tcp_fallback": _tcp_fallback,
    "throttled": _throttled,
    "wrong_choice": _wrong_choice,
    "wrong_numa": _wrong_numa,
}
_SHOWS = {
    "nic_missing": few_nics,
    "nic_slow": slow_nic,
    "wrong_choice": choices.differs,
    "wrong_numa": far_nics,
}
_ROW = Table(
    {
        **dict.fromkeys(("title", "check"), Text()),
        **dict.fromkeys(("signs", "rules_out"), Items(Text())),
        "reports": Number(low=1, whole=True),
    },
    needed=("title", "check"),
)


def _cause(name: str, row: dict[str, Any]) -> Cause:
    """A cause of `causes.toml`, with what it would change."""
    row |= {key: tuple(row.get(key, ())) for key in ("signs", "rules_out")}
    changes = _CHANGES.get(name, lambda here: ())
    return Cause(changes=changes, shows=_SHOWS.get(name), **row)


CAUSES = {name: _cause(name, row) for name, row in schema.rows(FILE, _ROW).items()}
