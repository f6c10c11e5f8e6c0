"""How busy the links were over time, by class of links of the folded cluster, and where to draw the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.analysis.prediction import Details
from sim.engine.traffic import Traffic
from topologies.fabric import Fabric
from topologies.show import labels
from topologies.show.folding import Folded, class_of, fold

PARTS = 80  # equal parts of the last step


@dataclass(frozen=True, eq=False)
class Heat:
    """Use of links over time.

    Attributes
    ----------
    folded : Folded
        The cluster as it is drawn; `places` has the middle of each class in units of a box's distance.
    rows : list of (edge, text)
        Index into `folded.edges` and direction in words, of every class of links that carried anything.
    mean, busiest : np.ndarray, shape (rows, PARTS)
        Share of the bandwidth in use (0 to 1): of all links of the class together, and of its busiest link.
    """

    folded: Folded
    places: dict[int, tuple[float, int]]
    rows: list[tuple[int, str]]
    mean: np.ndarray
    busiest: np.ndarray

    def label(self, edge: int) -> str:
        return labels.cables(self.folded, self.folded.edges[edge])

    @property
    def names(self) -> list[str]:
        """A name for every row: `nvlink: gpu → nvswitch`; a number tells apart those that would share one."""
        made: list[str] = []
        seen: dict[str, int] = {}
        for edge, text in self.rows:
            name = f"{self.folded.edges[edge].kind}: {text}"
            seen[name] = seen.get(name, 0) + 1
            made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
        return made

    def told(self, node: int) -> str:
        return labels.title(self.folded.classes[node])


def heat(details: Details, window: tuple[float, float], parts: int = PARTS) -> Heat:
    """The links' use in `window` (seconds) in equal parts."""
    fabric, traffic, carried = details.fabric, details.traffic, details.carried
    folded = fold(fabric)
    group, keys = _groups(fabric, folded)
    count = len(keys)
    bandwidth = fabric.links.bandwidth
    load = carried / bandwidth
    size = np.bincount(group, minlength=count)
    plans = {id(plan): plan for plan in traffic.plans}
    number = {key: at for at, key in enumerate(plans)}
    mean, hot = np.zeros((len(plans), count)), np.zeros((len(plans), count))
    order = np.lexsort((load, group))
    busiest = np.full(count, -1)
    busiest[group[order]] = order  # of each group the last, the busiest
    for at, plan in enumerate(plans.values()):
        share = plan.usage / bandwidth[plan.links]
        of = group[plan.links]
        mean[at] = np.bincount(of, weights=share, minlength=count) / size
        mine = busiest[of] == plan.links
        hot[at] = np.bincount(of[mine], weights=share[mine], minlength=count)
    rates = _rates(
        traffic, np.array([number[id(plan)] for plan in traffic.plans]), window, parts
    )
    used = [at for at in range(count) if carried[group == at].any()]
    rows = [(keys[at][0], _direction(folded, *keys[at])) for at in used]
    return Heat(
        folded, _places(folded), rows, (mean.T @ rates)[used], (hot.T @ rates)[used]
    )


def _groups(
    fabric: Fabric, folded: Folded
) -> tuple[np.ndarray, list[tuple[int, bool]]]:
    """The group of every link: (edge of the folded cluster, whether it runs from the edge's first end)."""
    src, dst = fabric.ends
    colour = class_of(fabric)
    known = {(*edge.ends, edge.kind): at for at, edge in enumerate(folded.edges)}
    ends = zip(
        colour[src].tolist(),
        colour[dst].tolist(),
        fabric.links.kind.tolist(),
        strict=True,
    )
    keys: dict[tuple[int, bool], int] = {}
    group = [
        keys.setdefault((known[min(a, b), max(a, b), kind], a <= b), len(keys))
        for a, b, kind in ends
    ]
    return np.array(group, dtype=np.int64), list(keys)


def _rates(
    traffic: Traffic, plan: np.ndarray, window: tuple[float, float], parts: int
) -> np.ndarray:
    """Mean payload bytes/s of every plan in every part, shape (plans, parts)."""
    rows, begin, end = traffic.segments()
    here = (end > window[0]) & (begin < window[1])
    rows, begin, end = rows[here], begin[here], end[here]
    of, rate, edges = (
        plan[traffic.activity[rows]],
        traffic.rate[rows],
        np.linspace(*window, parts + 1),
    )
    most = int(plan.max(initial=-1)) + 1
    moved = [
        np.bincount(
            of, weights=rate * np.clip(t - begin, 0.0, end - begin), minlength=most
        )
        for t in edges
    ]
    width = max((window[1] - window[0]) / parts, 1e-15)
    made: np.ndarray = np.diff(np.array(moved), axis=0).T / width
    return made


def _direction(folded: Folded, edge: int, forward: bool) -> str:
    a, b = folded.edges[edge].ends if forward else folded.edges[edge].ends[::-1]
    names = [folded.classes[at].kind for at in (a, b)]
    return " → ".join(names) if a != b else f"{names[0]} – {names[0]}"


def _places(folded: Folded) -> dict[int, tuple[float, int]]:
    """(column, row) of every class; a row's middle is column 0."""
    return {
        at: (column - (len(row) - 1) / 2, level)
        for level, row in enumerate(labels.layers(folded))
        for column, at in enumerate(row)
    }


def as_data(found: Heat) -> dict[str, Any]:
    """What the page's script needs to show one moment: percent by row and part."""
    return {
        "edges": [edge for edge, _ in found.rows],
        "use": np.rint(1000 * np.clip(found.busiest, 0, 1)).astype(int).tolist(),
    }
