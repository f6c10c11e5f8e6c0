"""Elements of a cluster that what-ifs change one at a time: `prestep whatif --each`."""

from __future__ import annotations

from sim.errors import InputError, Mistake, unknown
from topologies.core.kinds import TIERS
from topologies.fabric import Fabric

# Elements of one kind that `--each` tries; of more, the first.
MOST = 64
Element = tuple[str, str]  # its name, and its selector and attribute


def elements(fabric: Fabric, each: str, world: int) -> list[Element]:
    """What `--each` changes, one at a time: (its name, the selector and attribute).

    Raises
    ------
    InputError
        For a word that is not one of `EACH`, or names nothing on this cluster.
    """
    if each not in EACH:
        raise InputError(unknown("command line", "--each", each, EACH))
    chosen = EACH[each](fabric, world)[:MOST]
    if not chosen:
        raise InputError(
            Mistake(
                "command line",
                "--each",
                f'"{each}"',
                f"something that {fabric.name} has",
            )
        )
    return chosen


def _kinds(fabric: Fabric, world: int) -> list[Element]:
    return [(kind, f"{kind}.bandwidth") for kind in fabric.links.kinds]


def _tiers(fabric: Fabric, world: int) -> list[Element]:
    present = [
        kind for kind in TIERS if kind in (*fabric.nodes.kinds, *fabric.links.kinds)
    ]
    return [(kind, f"{kind}.bandwidth") for kind in present]


def _latencies(fabric: Fabric, world: int) -> list[Element]:
    return [(f"{kind} latency", f"{kind}.latency") for kind in fabric.links.kinds]


def _gpu(fabric: Fabric, world: int) -> list[Element]:
    return [
        (f"gpu {name}", f"gpu.{name}") for name in ("flops", "hbm_bandwidth", "clock")
    ]


def _ranks(fabric: Fabric, world: int) -> list[Element]:
    return [
        (f"gpu[{rank}]", f"gpu[{rank}].clock")
        for rank in range(min(world, len(fabric.gpus)))
    ]


def _hosts(fabric: Fabric, world: int) -> list[Element]:
    used = dict.fromkeys(fabric.host_of(gpu) for gpu in fabric.gpus[:world])
    return [(host, f"{host}.bandwidth") for host in used if host]


def _links(fabric: Fabric, world: int) -> list[Element]:
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


def _all(fabric: Fabric, world: int) -> list[Element]:
    return [*_gpu(fabric, world), *_kinds(fabric, world), *_latencies(fabric, world)]


#: Words of --each -> what they change.
EACH = {
    "link-kind": _kinds,
    "tier": _tiers,
    "latency": _latencies,
    "gpu": _gpu,
    "rank": _ranks,
    "host": _hosts,
    "link": _links,
    "all": _all,
}
