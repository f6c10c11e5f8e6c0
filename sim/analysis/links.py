"""What the links of a run did: the busiest, by kind, and over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.analysis import metrics
from prestep.sim.analysis.link_use import Link, LinkKind, LinkLoad
from prestep.sim.analysis.shadow_prices import Prices
from prestep.sim.engine.execution import Run
from prestep.sim.engine.traffic import Traffic, means
from prestep.topologies.core.links import Links

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

    Utilisation and bytes are over the whole run, profiles and times held back over the window. Bytes are those of data;
    flags and headers beside them count as use. Every step then waits for its data for `waiting` seconds, in which the
    links carry nothing.
    """
    window = (window[0], window[1] + waiting)
    duration = run.finished + run.steps * waiting
    used = metrics.link_utilisation(run.bytes.carried, links.bandwidth, duration)
    price = None if prices is None else prices.by_link
    rows = metrics.busiest(_name_in(links), used, run.bytes.carried, price, SHOWN)
    loads = tuple(_load(links, run.traffic, row) for row in rows)
    edges = np.linspace(*window, PARTS + 1)
    busiest = [
        _over_time(_link(links, row, used, run.bytes.data), load, edges)
        for row, load in zip(rows, loads, strict=True)
    ]
    kinds = _kinds(links, run, used, window, prices)
    return LinkReport(_priced(busiest, rows, prices), kinds, loads)


def _priced(
    busiest: Sequence[Link], rows: Sequence[int], prices: Prices | None
) -> tuple[Link, ...]:
    """The links of `rows` with their shadow prices, where they are known."""
    if prices is None:
        return tuple(busiest)
    return tuple(
        replace(link, **prices.of(row)) for link, row in zip(busiest, rows, strict=True)
    )


def _name_in(links: Links) -> Callable[[int], str]:
    """What a row of `links` is called."""
    return lambda row: f"{links.src[row]} -> {links.dst[row]}"


def _load(links: Links, traffic: Traffic, row: int) -> LinkLoad:
    name, bandwidth = _name_in(links)(row), float(links.bandwidth[row])
    return LinkLoad(name, bandwidth, *traffic.load(row))


def _link(links: Links, row: int, used: np.ndarray, data: np.ndarray) -> Link:
    """A link over the whole run."""
    return Link(
        name=_name_in(links)(row),
        utilisation=float(used[row]),
        bytes=float(data[row]),
        kind=str(links.kind[row]),
    )


def _over_time(link: Link, load: LinkLoad, edges: np.ndarray) -> Link:
    """The link with its peak, and its profile between the edges (seconds)."""
    profile = means(load.time, load.load, edges) / load.bandwidth
    return replace(
        link,
        peak=float(load.load.max(initial=0.0)) / load.bandwidth,
        profile=tuple(np.round(profile, 6).tolist()),
    )


def _kinds(
    links: Links,
    run: Run,
    used: np.ndarray,
    window: tuple[float, float],
    prices: Prices | None,
) -> tuple[LinkKind, ...]:
    """Kinds of links that carried anything."""
    copies = run.bytes.copies
    held = held_by(run.traffic, links, window)
    kinds = []
    for kind in links.kinds:
        rows = links.of_kind(kind)
        rows = rows[run.bytes.carried[rows] > 0]
        if not len(rows):
            continue
        use = LinkKind(
            kind=kind,
            links=min(len(links.of_kind(kind)), round(float(copies[rows].sum()))),
            utilisation=float(used[rows].max()),
            bytes=float(run.bytes.data_everywhere[rows].sum()),
            held=held.get(kind, 0.0),
            shadow_price=None if prices is None else prices.by_kind.get(kind, 0.0),
            cause="" if prices is None else prices.causes.get(kind, ""),
        )
        kinds.append(use)
    return tuple(sorted(kinds, key=_rank))


def _rank(kind: LinkKind) -> tuple[float, float, float]:
    """The highest shadow price first, then the longest time held back, then the highest utilisation."""
    return -(kind.shadow_price or 0.0), -kind.held, -kind.utilisation


def held_by(
    traffic: Traffic, links: Links, window: tuple[float, float]
) -> dict[str, float]:
    """Seconds of a window in which a full link of each kind holds a transfer back; "" for a transfer's own limit."""
    rows, begin, end = traffic.under_way()
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
