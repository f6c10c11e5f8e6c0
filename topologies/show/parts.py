"""The parts of a cluster that a drawing shows: tiers of switches, what hangs below each, and one of what is alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.topologies.core.checks import components
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.show.folding import class_of

#: Switches of a tier, and ports of a host, that are drawn one by one.
MOST_SWITCHES = 8
#: Parts below a tier that are drawn, by how many tiers above the hosts have more than one part.
MOST_PARTS = {0: (1,), 1: (5,), 2: (2, 3), 3: (2, 2, 2)}


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the network: switches of one tier, and the parts that they join; a host has neither.

    Attributes
    ----------
    kind
        Of the switches; "host" for a host, "" for parts that no tier joins: lone hosts, groups of a dragonfly.
    members, switches
        Nodes, as positions in the fabric.
    parts
        Those below.
    """

    kind: str
    members: Ints
    switches: Ints
    parts: tuple[Part, ...] = ()

    @property
    def levels(self) -> int:
        """Levels below with more than one part."""
        deepest = max((part.levels for part in self.parts), default=0)
        return deepest + (len(self.parts) > 1)


@dataclass(frozen=True, eq=False)
class Shown:
    """One of several things that are alike, and how many it stands for, itself among them."""

    item: Part
    stands_for: int


def parts_of(fabric: Fabric) -> Part:
    """The cluster from its highest tier of switches down to its hosts; the storage network is left out."""
    kinds = np.array(fabric.nodes.kinds)
    storage = np.char.startswith(kinds, "storage")
    tiers = _tiers(fabric, kinds)
    src, dst = fabric.ends
    # What hangs together without the storage network and the highest tiers, the next one fewer each time.
    labels, gone = list[Ints](), storage.copy()
    grouped = _groups(fabric, kinds, storage)
    if grouped is not None:
        tiers, labels = ["", *tiers], [grouped]
    for tier in filter(None, tiers):
        gone |= (kinds == tier) & (fabric.nodes.host_at < 0)
        joined = ~(gone[src] | gone[dst])
        labels.append(components(len(kinds), src[joined], dst[joined]))
    others = storage | np.isin(np.arange(len(kinds)), planes_of(fabric)[1:])
    return _split(
        fabric, kinds, np.flatnonzero(~others), list(zip(tiers, labels, strict=True))
    )


def planes_of(fabric: Fabric) -> list[Ints]:
    """Switches of each plane: networks side by side that only hosts join; one where there are no planes."""
    kinds = np.array(fabric.nodes.kinds)
    switches = (fabric.nodes.host_at < 0) & ~np.char.startswith(kinds, "storage")
    switches &= kinds != "nvswitch"
    src, dst = fabric.ends
    joined = switches[src] & switches[dst]
    label = components(len(kinds), src[joined], dst[joined])
    members = np.flatnonzero(switches)
    planes = _grouped(members, label[members])
    # Rails that no spine joins are one switch each, and drawn side by side.
    alike = len({len(plane) for plane in planes}) == 1 and len(planes[0]) > 1
    return planes if alike else [members]


def _groups(fabric: Fabric, kinds: np.ndarray, storage: np.ndarray) -> Ints | None:
    """Groups of a dragonfly: what hangs together without one kind of links between switches of a kind."""
    src, dst = fabric.ends
    outside = fabric.nodes.host_at < 0
    level = outside[src] & outside[dst] & (kinds[src] == kinds[dst]) & ~storage[src]
    for kind in sorted(set(fabric.links.kind[level].tolist())):
        kept = (fabric.links.kind != kind) & ~(storage[src] | storage[dst])
        label = components(len(kinds), src[kept], dst[kept])
        groups, sizes = np.unique(label[outside & ~storage], return_counts=True)
        if len(groups) > 1 and sizes.min() > 1:
            return label
    return None


def _tiers(fabric: Fabric, kinds: np.ndarray) -> list[str]:
    """Kinds of switches outside hosts, highest first; kinds that no tier is named after count as plain switches."""
    outside = [
        k
        for k in set(kinds[fabric.nodes.host_at < 0].tolist())
        if not k.startswith("storage")
    ]
    order = {kind: at for at, kind in enumerate(TIERS)}
    return sorted(outside, key=lambda kind: (-order.get(kind, order["switch"]), kind))


def _split(
    fabric: Fabric, kinds: np.ndarray, members: Ints, tiers: Sequence[tuple[str, Ints]]
) -> Part:
    """The part of some members: the switches of the first tier that they have, and what falls apart without them."""
    if not tiers:
        hosts = _grouped(members, fabric.nodes.host_at[members])
        alone = [Part("host", nodes, nodes[:0]) for nodes in hosts]
        return (
            alone[0]
            if len(alone) == 1
            else Part("", members, members[:0], tuple(alone))
        )
    (tier, label), *lower = tiers
    if not tier:
        groups = [
            _split(fabric, kinds, n, lower) for n in _grouped(members, label[members])
        ]
        return Part("", members, members[:0], tuple(groups))
    of_tier = (kinds[members] == tier) & (fabric.nodes.host_at[members] < 0)
    if not of_tier.any():
        return _split(fabric, kinds, members, lower)
    rest = members[~of_tier]
    below = [
        _split(fabric, kinds, nodes, lower) for nodes in _grouped(rest, label[rest])
    ]
    return Part(tier, members, members[of_tier], tuple(below))


def _grouped(members: Ints, label: Ints) -> list[Ints]:
    """Members with the same label, in order of the labels."""
    order = np.argsort(label, kind="stable")
    cuts = np.flatnonzero(np.diff(label[order])) + 1
    return np.split(members[order], cuts) if len(members) else []


def shown(fabric: Fabric, part: Part, most: int) -> list[Shown]:
    """The parts below one that are drawn: all, or the first and the last of those that are alike."""
    if len(part.parts) <= most:
        return [Shown(below, 1) for below in part.parts]
    alike = _alike(part, class_of(fabric))
    if len(alike) > most:  # all differ a little: those of the same make are one
        alike = _alike(part, class_of(fabric, 0))
    groups = sorted(alike, key=len, reverse=True)[:most]
    each = max(1, most // len(groups))
    chosen = []
    for group in groups:
        few = group if len(group) <= each else [*group[: each - 1], group[-1]]
        rest = len(group) - len(few)
        chosen += [Shown(one, 1) for one in few[:-1]]
        chosen.append(Shown(few[-1], 1 + rest))
    return sorted(chosen, key=lambda one: int(one.item.members[0]))


def _alike(part: Part, classes: Ints) -> list[list[Part]]:
    """Parts below one, those together whose members are of the same classes."""
    alike: dict[bytes, list[Part]] = {}
    for below in part.parts:
        signature = np.bincount(classes[below.members]).tobytes()
        alike.setdefault(signature, []).append(below)
    return list(alike.values())


def some(nodes: Ints, most: int = MOST_SWITCHES) -> list[int]:
    """Nodes of a row that are drawn: all, or the first ones and the last; -1 stands for those between."""
    listed: list[int] = nodes.tolist()
    return listed if len(listed) <= most else [*listed[: most - 3], -1, listed[-1]]
