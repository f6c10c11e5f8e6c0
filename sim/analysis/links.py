"""What the links of a run did: the busiest, by kind, and over time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.analysis import metrics
from sim.analysis.prediction import Link, LinkKind, LinkLoad
from sim.analysis.shadow_prices import Prices
from sim.engine.execution import Run
from sim.engine.traffic import Traffic, means
from topologies.core.links import Links

SHOWN = 8
PARTS = 40  # equal parts of the last step in a link's profile


@dataclass(frozen=True)
class LinkReport:
    """The busiest links, all kinds, and loads of the busiest over time."""

    links: tuple[Link, ...]
    kinds: tuple[LinkKind, ...]
    loads: tuple[LinkLoad, ...]


def link_report(
    links: Links,
    run: Run,
    window: tuple[float, float],
    prices: Prices | None = None,
    waiting: float = 0.0,
) -> LinkReport:
    """Links of a run; `window` is when the last step begins and ends (seconds).

    Utilisation and bytes are over the whole run, profiles and times held back over the window. Every step then waits
    for its data for `waiting` seconds, in which the links carry nothing.
    """
    window = (window[0], window[1] + waiting)
    used = metrics.link_utilisation(
        run.carried, links.bandwidth, run.finished + run.steps * waiting
    )
    price = None if prices is None else prices.by_link

    def name(row: int) -> str:
        return f"{links.src[row]} -> {links.dst[row]}"

    shown = metrics.busiest(name, used, run.carried, price, SHOWN)
    names = {row: name(row) for row in shown}
    loads = tuple(
        LinkLoad(names[row], float(links.bandwidth[row]), *run.traffic.load(row))
        for row in shown
    )
    edges = np.linspace(*window, PARTS + 1)
    listed = []
    for row, load in zip(shown, loads, strict=True):
        link = Link(
            names[row],
            float(used[row]),
            float(run.carried[row]),
            kind=str(links.kind[row]),
        )
        peak = float(load.load.max(initial=0.0)) / load.bandwidth
        parts = tuple(
            np.round(means(load.time, load.load, edges) / load.bandwidth, 6).tolist()
        )
        link = replace(link, peak=peak, profile=parts)
        listed.append(link if prices is None else replace(link, **prices.of(row)))
    return LinkReport(
        tuple(listed),
        _kinds(links, run.traffic, used, run.carried, window, prices),
        loads,
    )


def _kinds(
    links: Links,
    traffic: Traffic,
    used: np.ndarray,
    carried: np.ndarray,
    window: tuple[float, float],
    prices: Prices | None,
) -> tuple[LinkKind, ...]:
    held = held_by(traffic, links, window)
    found = []
    for kind in links.kinds:
        rows = links.of_kind(kind)
        rows = rows[carried[rows] > 0]
        if len(rows):
            price = None if prices is None else prices.by_kind.get(kind, 0.0)
            total = float(carried[rows].sum())
            found.append(
                LinkKind(
                    kind,
                    len(rows),
                    float(used[rows].max()),
                    total,
                    held.get(kind, 0.0),
                    price,
                )
            )
    return tuple(
        sorted(found, key=lambda k: (-(k.shadow_price or 0.0), -k.held, -k.utilisation))
    )


def held_by(
    traffic: Traffic, links: Links, window: tuple[float, float]
) -> dict[str, float]:
    """Seconds of a window in which a full link of each kind holds a transfer back; "" for a transfer's own limit."""
    rows, begin, end = traffic.segments()
    bound = traffic.bound[rows]
    kinds = np.where(bound >= 0, links.kind[np.maximum(bound, 0)], "")
    begin, end = np.clip(begin, *window), np.clip(end, *window)
    return {
        str(kind): _union(begin[kinds == kind], end[kinds == kind])
        for kind in dict.fromkeys(kinds.tolist())
    }


def _union(begin: np.ndarray, end: np.ndarray) -> float:
    """Seconds that any of the intervals covers."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    covered = np.concatenate([[-np.inf], reach[:-1]])
    return float(np.maximum(0.0, reach - np.maximum(begin, covered)).sum())
