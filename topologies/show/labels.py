"""Words for the cables of a folded cluster, for drawings and for the report's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log10

from prestep.sim.markup import Markup, element
from prestep.sim.units import format_bandwidth
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.show.folding import Edge, Folded


def cables(folded: Folded, *edges: Edge) -> str:
    """`32 × 48 GB/s per leaf`: cables of one node of the lower end if each has as many, else of the upper one.

    Edges that join nodes of the same kinds are counted together.
    """
    classes = {at: folded.classes[at] for edge in edges for at in edge.ends}
    counts = Counter[str]()
    for one in classes.values():
        counts[one.kind] += one.count
    total = sum(edge.cables for edge in edges)
    ends = 2 if len(counts) == 1 else 1  # of a cable between two of a kind
    for kind in sorted(counts, key=lambda kind: (_level(kind), -counts[kind], kind)):
        each, rest = divmod(total * ends, counts[kind])
        if not rest:
            times = f"{each} × " if each > 1 else ""
            return f"{times}{_rate(edges)}{f' per {kind}' * (counts[kind] > 1)}"
    return f"{total:,} × {_rate(edges)} in all"


def _level(kind: str) -> int:
    """The height of a kind among the tiers; what is in a host stands below all of them."""
    return TIERS.index(kind) if kind in TIERS else -1


def _rate(edges: Sequence[Edge]) -> str:
    low = format_bandwidth(min(edge.low for edge in edges))
    high = format_bandwidth(max(edge.high for edge in edges))
    if low == high:
        return low
    number, unit = low.split()
    return f"{number}-{high}" if unit == high.split()[1] else f"{low}-{high}"


def short(name: str, most: int) -> str:
    """A name that fits into a box: its letters give way to its number.

    Examples
    --------
    >>> short("rack0/nvswitch12", 7), short("leaf3", 7)
    ('nvsw12', 'leaf3')
    """
    last = name.rpartition("/")[2]
    letters = last.rstrip("0123456789")
    if len(last) > most and letters != "switch":
        last = last.replace("switch", "sw")
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
