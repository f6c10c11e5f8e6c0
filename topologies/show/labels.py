"""Words for the cables of a folded cluster, for drawings and for the report's page."""

from __future__ import annotations

from prestep.sim.units import format_bandwidth
from prestep.topologies.show.folding import Edge, Folded


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
