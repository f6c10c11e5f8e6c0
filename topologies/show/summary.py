"""A cluster in a few numbers: bisection, diameter, oversubscription."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.errors import InputError
from prestep.sim.units import format_bandwidth, format_duration
from prestep.topologies.core.checks import components
from prestep.topologies.core.kinds import STORAGE_LINKS, TIERS
from prestep.topologies.fabric import Fabric
from prestep.topologies.show.folding import fold
from prestep.topologies.show.tiers import parts

if TYPE_CHECKING:
    import networkx as nx


def bisection(fabric: Fabric, kinds: Collection[str] = (), wire: bool = True) -> float:
    """Bytes/s between the first half of the GPUs and the second, both directions together.

    Parameters
    ----------
    kinds
        Count only links of these kinds; all of them when empty.
    wire
        Datasheet rates (`links.raw`), as vendors quote it; else payload.

    Raises
    ------
    InputError
        If there are fewer than two GPUs.

    Notes
    -----
    A maximum flow from a source before one half to a sink behind the other, once in each direction.
    """
    half = len(fabric.gpus) // 2
    if not half:
        raise InputError.of(fabric.name, "bisection", "1 GPU", "at least 2")
    graph = _capacities(fabric, kinds, wire)
    first, second = fabric.gpus[:half], fabric.gpus[half:]
    return _flow(graph, first, second) + _flow(graph, second, first)


def _capacities(
    fabric: Fabric, kinds: Collection[str], wire: bool
) -> nx.DiGraph[object]:
    """The links of some kinds (of all when empty) with their bytes/s."""
    import networkx as nx

    links = fabric.links
    rate = links.raw if wire else links.bandwidth
    graph: nx.DiGraph[object] = nx.DiGraph()
    for row, kind in enumerate(links.kind.tolist()):
        # Storage has a network of its own, by which no GPU sends to another.
        if kind in kinds if kinds else kind not in STORAGE_LINKS:
            ends = str(links.src[row]), str(links.dst[row])
            graph.add_edge(*ends, capacity=float(rate[row]))
    return graph


def _flow(
    graph: nx.DiGraph[object], senders: Sequence[str], receivers: Sequence[str]
) -> float:
    """The most bytes/s from all senders together to all receivers."""
    import networkx as nx

    # Objects, not names: no node of a cluster can be mistaken for them.
    source, sink = object(), object()
    flow = graph.copy()
    flow.add_edges_from((source, gpu) for gpu in senders)
    flow.add_edges_from((gpu, sink) for gpu in receivers)
    return float(nx.maximum_flow_value(flow, source, sink))


EXACT = 1100  # GPUs up to which the bisection is a maximum flow (about a second)


@dataclass(frozen=True)
class Oversubscription:
    """A tier of switches: bytes/s that one can be sent from below over what it can send up, least and most."""

    kind: str
    switches: int
    least: float
    most: float

    def __str__(self) -> str:
        same = (
            f"{self.least:.3g}:1"
            if self.most - self.least < 0.005
            else f"{self.least:.3g} to {self.most:.3g}:1"
        )
        return f"{self.kind} {same}"


def oversubscription(fabric: Fabric) -> list[Oversubscription]:
    """Every tier with links down and up, lowest first; wire rates."""
    level, up, down = _rates_up_and_down(fabric)
    tiers = []
    for at, kind in enumerate(TIERS):
        switches = np.flatnonzero((level == at) & (up > 0) & (down > 0))
        if len(switches):
            ratio = down[switches] / up[switches]
            least, most = float(ratio.min()), float(ratio.max())
            tiers.append(Oversubscription(kind, len(switches), least, most))
    return tiers


def _rates_up_and_down(fabric: Fabric) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every node's place in `TIERS`, bytes/s that it can send to the tiers above it, and be sent from below."""
    links, kinds = fabric.links, fabric.nodes.kinds
    order = {kind: at for at, kind in enumerate(TIERS)}
    level = np.array([order.get(kind, -1) for kind in kinds])
    link_level = np.array([order.get(kind, -1) for kind in links.kinds])
    link_level = link_level[links.kind_numbers]
    src, dst = fabric.ends
    # Two leaves may be joined by a link of kind "spine" without a switch of that name.
    rising = np.maximum(level[dst], link_level) > level[src]
    arriving = level[dst] > level[src]
    up = np.bincount(src[rising], links.raw[rising], len(kinds))
    down = np.bincount(dst[arriving], links.raw[arriving], len(kinds))
    return level, up, down


def diameter(fabric: Fabric) -> tuple[int, float, str, str]:
    """The longest shortest way between two GPUs: links, seconds without software, from and to.

    Looked for from one GPU of each class of alike ones (`prestep.topologies.show.folding`).
    """
    starts = [c.example for c in fold(fabric, 64).classes if c.kind == "gpu"]
    longest: tuple[int, float, str, str] = (0, 0.0, fabric.gpus[0], fabric.gpus[0])
    gpus = fabric.positions(fabric.gpus)
    for start in starts:
        hops = fabric.hops(start)[gpus]
        far = fabric.gpus[int(hops.argmax())]
        links = int(hops.max())
        if links > longest[0]:
            latency = fabric.latency(fabric.route(start, far))
            longest = (links, latency, start, far)
    return longest


def bisection_bound(fabric: Fabric) -> float:
    """What the tiers let pass between two halves at most, both directions together (wire rates)."""
    kinds = np.array(fabric.nodes.kinds)
    src, dst = fabric.ends
    present = [kind for kind in TIERS if kind in kinds]
    gpus = np.flatnonzero(kinds == "gpu")
    # A network of its own for storage joins hosts too, but not for gradients.
    storage = [kind for kind in set(fabric.nodes.kinds) if kind.startswith("storage")]
    bounds = []
    for at, kind in enumerate(present):
        if kind == "nvswitch":
            continue
        part = parts(kinds, src, dst, [*present[at:], *storage])
        named = np.unique(part[gpus])
        if len(named) > 1:
            into = (kinds[dst] == kind) & np.isin(part[src], named)
            bounds.append(float(fabric.links.raw[into].sum()))
    return min(bounds, default=float("inf"))


def _joining(fabric: Fabric) -> tuple[str, ...]:
    """Kinds of links that data takes between GPUs: only NVLinks where these join all; none: whatever there is.

    PCIe and NICs join the GPUs of a host too, but nothing sends over them where NVLink leads.
    """
    src, dst = fabric.ends
    nvlinks = np.flatnonzero(fabric.links.kind == "nvlink")
    part = components(len(fabric.nodes), src[nvlinks], dst[nvlinks])
    alone = len(np.unique(part[fabric.positions(fabric.gpus)])) == 1
    return ("nvlink",) if alone else ()


def summary(fabric: Fabric) -> list[tuple[str, str]]:
    """Rows (what, how much) for people."""
    rows = []
    if len(fabric.gpus) > 1:
        exact = len(fabric.gpus) <= EXACT
        cut = bisection(fabric, _joining(fabric)) if exact else bisection_bound(fabric)
        if np.isfinite(cut):
            rows.append(
                (
                    "bisection",
                    f"{'' if exact else 'at most '}{format_bandwidth(cut)} both ways, on the wire",
                )
            )
        steps, delay, src, dst = diameter(fabric)
        rows.append(
            (
                "diameter",
                f"{steps} link{'s' * (steps > 1)}, {format_duration(delay)} without software ({src} to {dst})",
            )
        )
    tiers = oversubscription(fabric)
    if tiers:
        rows.append(("oversubscription", ", ".join(map(str, tiers))))
    return rows
