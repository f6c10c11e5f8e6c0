"""Elements of a cluster that what-ifs change one at a time: `prestep whatif --each`."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.errors import InputError, unknown
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.fabric import Fabric

Element = tuple[str, str]  # its name, and its selector and attribute


def elements(fabric: Fabric, each: str, gpus: Sequence[str]) -> list[Element]:
    """What `--each` changes, one at a time: (its name, the selector and attribute).

    `gpus`: those of the run, by rank.

    Raises
    ------
    InputError
        For a word that is not one of `EACH`, or names nothing on this cluster.
    """
    if each not in EACH:
        raise InputError(unknown("command line", "--each", each, EACH))
    chosen = EACH[each](fabric, gpus)
    if not chosen:
        raise InputError.of(
            "command line", "--each", f'"{each}"', f"something that {fabric.name} has"
        )
    return chosen


def _kinds(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [(kind, f"{kind}.bandwidth") for kind in fabric.links.kinds]


def _tiers(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    present = [
        kind for kind in TIERS if kind in (*fabric.nodes.kinds, *fabric.links.kinds)
    ]
    return [(kind, f"{kind}.bandwidth") for kind in present]


def _latencies(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [(f"{kind} latency", f"{kind}.latency") for kind in fabric.links.kinds]


def _gpu(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [
        (f"gpu {name}", f"gpu.{name}") for name in ("flops", "hbm_bandwidth", "clock")
    ]


def _ranks(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    number = {name: at for at, name in enumerate(fabric.gpus)}
    return [(f"gpu[{number[gpu]}]", f"gpu[{number[gpu]}].clock") for gpu in gpus]


def _hosts(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [(host, f"{host}.bandwidth") for host in _used(fabric, gpus)]


def _host_clocks(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [(f"{host} clock", f"gpu[{host}].clock") for host in _used(fabric, gpus)]


def _used(fabric: Fabric, gpus: Sequence[str]) -> list[str]:
    """Hosts on which the job has a rank, in its order."""
    return [host for host in dict.fromkeys(map(fabric.host_of, gpus)) if host]


def _links(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    links = fabric.links
    cables = [
        row
        for row in range(len(links))
        if links.index[links.dst[row], links.src[row]] > row
    ]
    outside = [row for row in cables if not _inside(fabric, row)]
    return [
        (links.name(row), f"link[{links.name(row)}].bandwidth")
        for row in outside or cables
    ]


def _inside(fabric: Fabric, row: int) -> bool:
    """Whether a link joins two devices of one host."""
    ends = fabric.host_of(fabric.links.src[row]), fabric.host_of(fabric.links.dst[row])
    return bool(ends[0]) and ends[0] == ends[1]


def _all(fabric: Fabric, gpus: Sequence[str]) -> list[Element]:
    return [*_gpu(fabric, gpus), *_kinds(fabric, gpus), *_latencies(fabric, gpus)]


#: Words of --each -> what they change.
EACH = {
    "link-kind": _kinds,
    "tier": _tiers,
    "latency": _latencies,
    "gpu": _gpu,
    "rank": _ranks,
    "host": _hosts,
    "host-clock": _host_clocks,
    "link": _links,
    "all": _all,
}
