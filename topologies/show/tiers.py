"""A cluster level by level: how many parts a switch tier joins, and what each part can send into it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import InputError, Mistake
from topologies.core.checks import components
from topologies.core.kinds import STORAGE_LINKS, TIERS
from topologies.core.links import Ints, Texts
from topologies.fabric import Fabric


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
    kinds = np.array(fabric.nodes.kinds)
    # The storage fabric joins hosts too, but not for collectives.
    kept = np.flatnonzero(~np.isin(fabric.links.kind, list(STORAGE_LINKS)))
    src, dst = (ends[kept] for ends in fabric.ends)
    rate, link_kind = (
        (fabric.links.raw if wire else fabric.links.bandwidth)[kept],
        fabric.links.kind[kept],
    )
    gpus = np.flatnonzero(kinds == "gpu")
    found = []
    present = [kind for kind in TIERS if kind in kinds]
    for at, kind in enumerate(present):
        above = np.isin(kinds, present[at + 1 :])
        # Level one is NVLink alone: PCIe joins the GPUs of a host too, but not for bandwidth.
        below = parts(kinds, src, dst, [] if kind == "nvswitch" else present[at:])
        inside = ~(above[src] | above[dst]) & (
            (link_kind == "nvlink") if kind == "nvswitch" else True
        )
        group = components(len(kinds), src[inside], dst[inside])
        children = _most_children(group[gpus], below[gpus])
        if children > 1:
            into = inside & (kinds[dst] == kind) & (kinds[src] != kind)
            egress = np.bincount(
                below[src[into]], weights=rate[into], minlength=len(kinds)
            )
            found.append(
                Tier(kind, children, float(egress[np.unique(below[gpus])].min()))
            )
    return found


def all_gather_bandwidth(fabric: Fabric, wire: bool = True) -> float:
    """Bytes/s of an all-gather over all GPUs as the slowest tier allows it; see `tiers`.

    Raises
    ------
    InputError
        If no switch tier joins the GPUs.
    """
    levels = tiers(fabric, wire)
    if not levels:
        expected = f"switches of a kind in {', '.join(TIERS)} between the GPUs"
        raise InputError(
            Mistake(fabric.name, "all-gather bandwidth", "no tier", expected)
        )
    return min(level.all_gather for level in levels)


def parts(kinds: Texts, src: Ints, dst: Ints, without: list[str]) -> Ints:
    """The part that every node is in when switches of some kinds are taken away; every node by itself for none."""
    gone = np.isin(kinds, without)
    joined = ~(gone[src] | gone[dst]) & bool(without)
    return components(len(kinds), src[joined], dst[joined])


def _most_children(group: Ints, below: Ints) -> int:
    """Parts of the largest group."""
    pairs = np.unique(np.stack([group, below]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max())
