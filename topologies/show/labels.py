"""Words for the cables of a folded cluster, for drawings and for the report's page."""

from __future__ import annotations

from math import log10

from prestep.sim.markup import Markup, element
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


def short(name: str, most: int) -> str:
    """A name that fits into a box: its letters give way to its number.

    Examples
    --------
    >>> short("rack0/nvswitch12", 7), short("leaf3", 7)
    ('nvswi12', 'leaf3')
    """
    last = name.rpartition("/")[2]
    letters = last.rstrip("0123456789")
    number = last[len(letters) :]
    return letters[: max(1, most - len(number))] + number


def cable(folded: Folded, edge: int, path: str) -> Markup:
    """A cable as a line whose width follows its bandwidth."""
    one = folded.edges[edge]
    wide = 0.8 + 0.9 * max(0.0, log10(max(one.high, 1e9) / 1e9))
    kind = (
        one.kind
        if one.kind in ("nvlink", "pcie", "socket", "memory", "nvme", "c2c")
        else "net"
    )
    title = element("title", f"{one.kind}: {cables(folded, one)}")
    return element("path", title, d=path, class_=f"cable {kind}", stroke_width=wide)
