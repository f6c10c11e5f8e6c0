"""Shadow prices of links: what a little more bandwidth would save.

The price of a kind of link is (step time - step time with all its links 1 % faster) / 1 %, found by planning and
running the same operation graph again on such a cluster: it has everything in it, what other transfers and kernels do
with the time saved too, and NCCL's choices. So a faster kind can cost time. Where transfers merely take turns in
another order, that is no more than `RESOLUTION` of the step, and the price is 0; a greater cost is a negative price
with its cause.

A single link gets the price of its kind for the share of the transfers' time in which it was the tightest link of its
kind. Where several links are equally tight (all hops of a ring) each shows the price of all of them together: one of
them alone is worth nothing, since the others hold the transfer back as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.analysis.effects import step_time
from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.engine import execute
from prestep.sim.engine.execution import Run
from prestep.sim.extras import lazily
from prestep.sim.planning.planned import Planned, on_links
from prestep.topologies.core.links import Links
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric

with lazily():
    from prestep.sim.analysis import choices

MORE = 0.01
# A faster kind that costs no more than this part of the step costs nothing: the order of transfers alone does as much.
RESOLUTION = 1e-3
ROUNDING = 1e-12  # relative: of sums of a step's many durations in another order
EQUAL = 1e-6  # relative: links that differ by less are equally tight
# Kinds whose tightest link has more than this many times the bandwidth that the transfer needs cannot matter much.
ROOMY = 4.0
# Directed links of a cluster up to which prices are computed without being asked for: each takes another run.
MOST_LINKS = 20_000


@dataclass(frozen=True, eq=False)
class Prices:
    """Seconds of step time per relative gain of bandwidth.

    Attributes
    ----------
    by_kind : dict of str to float
        Of all links of a kind together.
    causes : dict of str to str
        Why a faster kind costs time, for kinds that have a negative price.
    by_link : np.ndarray, shape (links,)
    tied : np.ndarray of int, shape (links,)
        Links that have the same price together with this one.
    """

    by_kind: dict[str, float]
    causes: dict[str, str]
    by_link: np.ndarray
    tied: np.ndarray

    def of(self, row: int) -> dict[str, Any]:
        """The fields of `prestep.sim.analysis.prediction.Link` that a price fills."""
        return {"shadow_price": float(self.by_link[row]), "tied": int(self.tied[row])}


def affordable(fabric: Fabric) -> bool:
    """Whether prices are computed without being asked for."""
    return len(fabric.links) <= MOST_LINKS


def shadow_prices(planned: Planned, run: Run) -> Prices:
    """Prices of all links that carried anything, by one more run for every kind that may hold transfers back."""
    links = planned.fabric.links
    by_kind: dict[str, float] = {}
    causes: dict[str, str] = {}
    by_link, tied = np.zeros(len(links)), np.zeros(len(links), dtype=np.int64)
    spent = [(plan, time) for plan, time in run.traffic.seconds() if len(plan.links)]
    before = step_time(planned, run)
    for kind in _candidates(links, [plan for plan, _ in spent]):
        faster = _with_faster(planned, kind)
        after = step_time(faster, execute(faster, run.steps))
        price = _price(before, after)
        if price < 0:
            causes[kind] = _cause(planned, faster)
        share = _shares(links, kind, spent)
        by_kind[kind] = price
        by_link += share * price
        for equals in _equals(share):
            tied[equals] = int(equals.sum()) if price else 0
    return Prices(by_kind, causes, by_link, tied)


def _price(before: float, after: float) -> float:
    """Seconds per relative gain of bandwidth; 0 for what rounding saves, or the order of transfers costs."""
    saved = before - after
    nothing = -RESOLUTION * before <= saved <= ROUNDING * before
    return 0.0 if nothing else saved / MORE


def _with_faster(planned: Planned, kind: str) -> Planned:
    """The step where all links of a kind have a little more bandwidth."""
    change = {f"{kind}.bandwidth": f"{1 + MORE}x"}
    return on_links(planned, with_overrides(planned.fabric, change))


def _cause(planned: Planned, faster: Planned) -> str:
    """Why a step is slower on faster links."""
    changed = choices.changed_choices(planned, faster)
    if not changed:
        return "transfers that start earlier meet others"
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"NCCL then runs {changed[0]}{more}"


def _equals(share: np.ndarray) -> Iterator[np.ndarray]:
    """Masks of the links that have the same share, for every share above zero."""
    for level in np.unique(share[share > 0]):
        yield np.isclose(share, level, rtol=1e-9)


def _tightness(links: Links, plan: Plan) -> np.ndarray:
    """Seconds that every link of a plan needs per payload byte."""
    tightness: np.ndarray = plan.usage / links.bandwidth[plan.links]
    return tightness


def _candidates(links: Links, plans: list[Plan]) -> Iterator[str]:
    """Kinds that hold, or nearly hold, at least one plan back."""
    needed = set()
    for plan in plans:
        need, kinds = _tightness(links, plan), links.kind[plan.links]
        rate = min(plan.rate_cap, 1.0 / float(need.max()))
        needed |= set(kinds[need * rate * ROOMY >= 1.0].tolist())
    return (kind for kind in links.kinds if kind in needed)


def _shares(links: Links, kind: str, spent: list[tuple[Plan, float]]) -> np.ndarray:
    """Share of the time of transfers over links of a kind for which each of those links is the tightest."""
    share, total = np.zeros(len(links)), 0.0
    for plan, time in spent:
        mine = links.kind[plan.links] == kind
        if mine.any():
            need = _tightness(links, plan)[mine]
            share[plan.links[mine][need >= need.max() * (1 - EQUAL)]] += time
            total += time
    return share / total if total > 0 else share
