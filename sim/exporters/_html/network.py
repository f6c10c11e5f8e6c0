"""How busy the links were over time, by class of links of the folded cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.analysis.details import Details
from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.traffic import Traffic
from prestep.topologies.fabric import Fabric
from prestep.topologies.show import labels
from prestep.topologies.show.folding import Folded, class_of, fold

PARTS = 80  # equal parts of the last step


@dataclass(frozen=True, eq=False)
class Heat:
    """Use of links over time.

    Attributes
    ----------
    fabric, folded : Fabric, Folded
        The cluster, and its classes of links.
    rows : list of (edge, text)
        Index into `folded.edges` and direction in words, of every class of links that carried anything.
    mean, busiest : np.ndarray, shape (rows, PARTS)
        Share of the bandwidth in use (0 to 1): of all links of the class together, and of its busiest link.
    """

    fabric: Fabric
    folded: Folded
    rows: list[tuple[int, str]]
    mean: np.ndarray
    busiest: np.ndarray

    def label(self, edge: int) -> str:
        return labels.cables(self.folded, self.folded.edges[edge])

    @property
    def names(self) -> list[str]:
        """A name for every row: `nvlink: gpu → nvswitch`; a number tells apart those that would share one."""
        names: list[str] = []
        uses: dict[str, int] = {}
        for edge, text in self.rows:
            name = f"{self.folded.edges[edge].kind}: {text}"
            uses[name] = uses.get(name, 0) + 1
            names.append(name if uses[name] == 1 else f"{name} ({uses[name]})")
        return names


def heat(details: Details, window: tuple[float, float], parts: int = PARTS) -> Heat:
    """The links' use in `window` (seconds) in equal parts."""
    carried, bandwidth = details.carried, details.fabric.links.bandwidth
    folded = fold(details.fabric)
    group, keys = _groups(details.fabric, folded)
    busiest = _busiest_links(group, carried / bandwidth, len(keys))
    plans, plan_of_activity = _distinct_plans(details.traffic.plans)
    mean_share, busiest_share = _shares(plans, bandwidth, group, busiest)
    rates = _rates(details.traffic, plan_of_activity, window, parts)
    used = [at for at in range(len(keys)) if carried[group == at].any()]
    return Heat(
        fabric=details.fabric,
        folded=folded,
        rows=[(keys[at][0], _direction(folded, *keys[at])) for at in used],
        mean=(mean_share.T @ rates)[used],
        busiest=(busiest_share.T @ rates)[used],
    )


def _busiest_links(group: np.ndarray, load: np.ndarray, count: int) -> np.ndarray:
    """The link of each of the `count` groups that is loaded most; of equals the last."""
    busiest = np.full(count, -1)
    order = np.lexsort((load, group))
    # Of several values for one place NumPy keeps the last, which is the group's largest.
    busiest[group[order]] = order
    return busiest


def _distinct_plans(plans: Sequence[Plan]) -> tuple[list[Plan], np.ndarray]:
    """Plans that activities share, once; and the index among them of each activity's plan."""
    by_identity = {id(plan): plan for plan in plans}
    number = {key: at for at, key in enumerate(by_identity)}
    indices = np.array([number[id(plan)] for plan in plans])
    return list(by_identity.values()), indices


def _shares(
    plans: Sequence[Plan], bandwidth: np.ndarray, group: np.ndarray, busiest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Share of the bandwidth that a byte per second of each plan takes, shape (plans, groups).

    Of all links of a group together, and of its busiest one.
    """
    count = len(busiest)
    size = np.bincount(group, minlength=count)
    mean = np.zeros((len(plans), count))
    hot = np.zeros((len(plans), count))
    for at, plan in enumerate(plans):
        share = plan.usage / bandwidth[plan.links]
        groups = group[plan.links]
        mean[at] = np.bincount(groups, weights=share, minlength=count) / size
        leads = busiest[groups] == plan.links
        hot[at] = np.bincount(groups[leads], weights=share[leads], minlength=count)
    return mean, hot


def _groups(
    fabric: Fabric, folded: Folded
) -> tuple[np.ndarray, list[tuple[int, bool]]]:
    """The group of every link: (edge of the folded cluster, whether it runs from the edge's first end)."""
    src, dst = fabric.ends
    colour = class_of(fabric)
    edges = {(*edge.ends, edge.kind): at for at, edge in enumerate(folded.edges)}
    ends = zip(
        colour[src].tolist(),
        colour[dst].tolist(),
        fabric.links.kind.tolist(),
        strict=True,
    )
    keys: dict[tuple[int, bool], int] = {}
    group = [
        keys.setdefault((edges[min(a, b), max(a, b), kind], a <= b), len(keys))
        for a, b, kind in ends
    ]
    return np.array(group, dtype=np.int64), list(keys)


def _rates(
    traffic: Traffic, plan: np.ndarray, window: tuple[float, float], parts: int
) -> np.ndarray:
    """Mean payload bytes/s of every plan in every part, shape (plans, parts)."""
    segment, begin, end = _segments_in(traffic, window)
    segment_plan, rate = plan[traffic.activity[segment]], traffic.rate[segment]
    count = int(plan.max(initial=-1)) + 1

    def bytes_until(moment: float) -> np.ndarray:
        moved = rate * np.clip(moment - begin, 0.0, end - begin)
        return np.bincount(segment_plan, weights=moved, minlength=count)

    edges = np.linspace(*window, parts + 1)
    carried = np.array([bytes_until(moment) for moment in edges])
    width = max((window[1] - window[0]) / parts, 1e-15)
    rates: np.ndarray = np.diff(carried, axis=0).T / width
    return rates


def _segments_in(
    traffic: Traffic, window: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, begin, end) of the stretches of constant rate that reach into the window."""
    segment, begin, end = traffic.segments()
    inside = (end > window[0]) & (begin < window[1])
    return segment[inside], begin[inside], end[inside]


def _direction(folded: Folded, edge: int, forward: bool) -> str:
    a, b = folded.edges[edge].ends if forward else folded.edges[edge].ends[::-1]
    names = [folded.classes[at].kind for at in (a, b)]
    return " → ".join(names) if a != b else f"{names[0]} – {names[0]}"


def as_data(use: Heat) -> dict[str, Any]:
    """What the page's script needs to show one moment: thousandths by row and part."""
    return {
        "edges": [edge for edge, _ in use.rows],
        "use": np.rint(1000 * np.clip(use.busiest, 0, 1)).astype(int).tolist(),
    }
