"""A cluster level by level: how many parts a switch tier joins, and what each part can send into it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prestep.topologies.core.checks import components
from prestep.topologies.core.kinds import STORAGE_LINKS, TIERS
from prestep.topologies.core.links import Bools, Floats, Ints, Texts
from prestep.topologies.fabric import Fabric


@dataclass(frozen=True)
class Tier:
    """One level: switches of `kind` join `children` parts (in the largest group), each with `egress` bytes/s out.

    `all_gather` is the bandwidth of a ring all-gather over the parts, `egress * children / (children - 1)`.
    """

    kind: str
    children: int
    egress: float

    @property
    def all_gather(self) -> float:
        return self.egress * self.children / (self.children - 1)


def tiers(fabric: Fabric, wire: bool = True) -> list[Tier]:
    """Levels of switches that join at least two parts of the cluster, lowest first.

    Parameters
    ----------
    wire
        Datasheet rates (`links.raw`), as in the reference; else payload.

    Notes
    -----
    A part is what hangs together without the switches of this level and above; below the first level a part is one
    GPU. Its egress is the sum of its links into the level, the least of all parts.

    References
    ----------
    Austin et al., How to Scale Your Model, chapter 12: bandwidth = min over depths of D W / (D - 1), which is
    min(514, 413, 17,100) GB/s for 1,024 GPUs of a DGX H100 SuperPOD.
    """
    wiring = _wiring(fabric, wire)
    present = [kind for kind in TIERS if kind in wiring.kinds]
    levels = [_tier(wiring, present[at:]) for at in range(len(present))]
    return [level for level in levels if level.children > 1]


@dataclass(frozen=True, eq=False)
class _Wiring:
    """What joins GPUs: kinds of the nodes, and the ends, kinds and rates of the links."""

    kinds: Texts
    src: Ints
    dst: Ints
    link_kind: Texts
    rate: Floats


def _wiring(fabric: Fabric, wire: bool) -> _Wiring:
    links = fabric.links
    # The storage fabric joins hosts too, but not for collectives.
    rows = np.flatnonzero(~np.isin(links.kind, list(STORAGE_LINKS)))
    src, dst = fabric.ends
    rate = links.raw if wire else links.bandwidth
    kinds = np.array(fabric.nodes.kinds)
    return _Wiring(kinds, src[rows], dst[rows], links.kind[rows], rate[rows])


def _tier(wiring: _Wiring, kinds: list[str]) -> Tier:
    """The level of the first of some kinds of switches; the others are above it."""
    kind, *higher = kinds
    src, dst = wiring.src, wiring.dst
    above = np.isin(wiring.kinds, higher)
    inside = ~(above[src] | above[dst])
    below = parts(wiring.kinds, src, dst, kinds)
    if kind == "nvswitch":
        # Level one is NVLink alone: PCIe joins the GPUs of a host too, but not for bandwidth.
        inside &= wiring.link_kind == "nvlink"
        below = parts(wiring.kinds, src, dst, [])
    gpus = np.flatnonzero(wiring.kinds == "gpu")
    group = components(len(wiring.kinds), src[inside], dst[inside])
    egress = _egress(wiring, kind, inside, below)
    least = egress[below[gpus]].min()
    return Tier(kind, _most_children(group[gpus], below[gpus]), float(least))


def _egress(wiring: _Wiring, kind: str, inside: Bools, below: Ints) -> Floats:
    """Bytes/s from every part below into the switches of a kind."""
    kinds, src = wiring.kinds, wiring.src
    into = inside & (kinds[wiring.dst] == kind) & (kinds[src] != kind)
    egress = np.zeros(len(kinds))
    np.add.at(egress, below[src[into]], wiring.rate[into])
    return egress


def parts(kinds: Texts, src: Ints, dst: Ints, without: list[str]) -> Ints:
    """The part that every node is in when switches of some kinds are taken away; every node by itself for none."""
    gone = np.isin(kinds, without)
    joined = ~(gone[src] | gone[dst]) & bool(without)
    return components(len(kinds), src[joined], dst[joined])


def _most_children(group: Ints, below: Ints) -> int:
    """Parts of the largest group."""
    pairs = np.unique(np.stack([group, below]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max())
