"""Texts and places of a folded cluster's boxes and lines, for pictures and for the report's page."""

from __future__ import annotations

from prestep.sim.units import format_bandwidth
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.show.folding import Class, Edge, Folded

_INSIDE = (
    ["nic", "storage_nic"],
    ["nvme", "pcieswitch", "cpu", "memory"],
    ["gpu"],
    ["nvswitch"],
)
_BESIDE = {
    "spine": ["spine", "storage_spine", "storage"],
    "leaf": ["leaf", "storage_leaf"],
}


def layers(folded: Folded) -> list[list[int]]:
    """Classes from top to bottom: core, spines, leaves, then a host from its NICs to its NVSwitches."""
    outside = [kind for kind in reversed(TIERS) if kind != "nvswitch"]
    named = {kind for layer in _INSIDE for kind in layer} | set(outside)
    kinds = dict.fromkeys(one.kind for one in folded.classes)
    other = [
        kind for kind in kinds if kind not in named and not kind.startswith("storage")
    ]
    stacked = [
        *(_BESIDE.get(kind, [kind]) for kind in outside),
        *([kind] for kind in other),
        *_INSIDE,
    ]
    rows = [_of_kinds(folded, layer) for layer in stacked]
    rest = set(range(len(folded.classes))) - {at for row in rows for at in row}
    return [row for row in [*rows, sorted(rest)] if row]


def _of_kinds(folded: Folded, kinds: list[str]) -> list[int]:
    """Classes by kind, then by first appearance."""
    return [
        at
        for kind in kinds
        for at, one in enumerate(folded.classes)
        if one.kind == kind
    ]


def title(this: Class) -> str:
    """`8 × gpu` in each host; outside hosts, or unevenly in them, how many there are."""
    each = (
        this.per_host
        if this.per_host == int(this.per_host) and this.hosts
        else this.count
    )
    return f"{each:,.0f} × {this.kind}" if each != 1 else this.kind


def details(folded: Folded, at: int) -> list[str]:
    """Smaller lines of a box: how many in all, or its name; links among themselves."""
    this, lines = folded.classes[at], []
    if this.count == 1 and (this.hosts or this.example != this.kind):
        lines.append(this.example)
    elif this.hosts > 1:
        whole = this.per_host == int(this.per_host)
        lines.append(f"{this.count:,} in all" if whole else f"in {this.hosts:,} hosts")
    lines += [
        f"{edge.kind}: {_rate(edge)}" for edge in folded.edges if edge.ends == (at, at)
    ]
    return lines


def cables(folded: Folded, edge: Edge) -> str:
    """`32 × 48 GB/s per leaf`: cables of one node of the end that has more of them, if that is a whole number."""
    ends = sorted(
        (folded.classes[at] for at in edge.ends), key=lambda one: (-one.count, one.kind)
    )
    for this in ends:
        each, rest = divmod(edge.cables, this.count)
        if not rest:
            times = f"{each} × " if each > 1 else ""
            return f"{times}{_rate(edge)}" + (
                f" per {this.kind}" if this.count > 1 else ""
            )
    return f"{edge.cables:,} × {_rate(edge)} in all"


def _rate(edge: Edge) -> str:
    low, high = format_bandwidth(edge.low), format_bandwidth(edge.high)
    if low == high:
        return low
    number, unit = low.split()
    return f"{number}-{high}" if unit == high.split()[1] else f"{low}-{high}"
