"""Which transfers share links, and the rates of those that do, remembered: a step asks for the same ones often.

A transfer's *shape* is its links with the bytes on each. Its rate depends on nothing but the shapes and the caps of
those with which it shares links, directly or through others; ten thousand transfers of a pipeline have a few dozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from prestep.sim.engine.fair_share import Incidence, rates

if TYPE_CHECKING:
    from prestep.sim.engine.fluid import Activity

# From so many transfers at once on, columns find what is connected faster than pairs do.
MANY = 48
# Solutions remembered; a run with noise never asks for the same twice, and forgets them all when they are so many.
REMEMBERED = 10_000
# Transfers in the order in which they began.
BY_NUMBER = attrgetter("number")


class OnLinks(Protocol):
    """What puts bytes on links, or the most bytes/s that it does."""

    @property
    def links(self) -> np.ndarray: ...
    @property
    def usage(self) -> np.ndarray: ...
    @property
    def data_usage(self) -> np.ndarray: ...


Solution = tuple[list[float], list[int]]


class _Near(dict[int, bool]):
    """Whether a shape shares a link with each other shape, by its number; decided on the first question."""

    def __init__(self, shapes: Shapes, mine: int) -> None:
        super().__init__()
        self.shapes, self.mine = shapes, mine

    def __missing__(self, other: int) -> bool:
        near = self.shapes.meet(self.mine, other)
        self[other] = self.shapes.near[other][self.mine] = near
        return near


class Shapes:
    """The shapes of a run's transfers, numbered, and which of them share links."""

    def __init__(self, links: int) -> None:
        # One of every shape; it keeps the arrays alive whose ids are keys.
        self.plans: list[OnLinks] = []
        self.near: list[_Near] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._mark = np.zeros(links, dtype=bool)

    def of(self, plan: OnLinks) -> int:
        """The number of a plan's shape: same arrays, same shape."""
        key = (id(plan.links), id(plan.usage))
        number = self._numbers.get(key)
        return self._add(key, plan) if number is None else number

    def _add(self, key: tuple[int, int], plan: OnLinks) -> int:
        number = self._numbers[key] = len(self.plans)
        self.near.append(_Near(self, number))
        self.plans.append(plan)
        return number

    def meet(self, one: int, other: int) -> bool:
        """Whether two shapes have a link in common."""
        links = self.plans[one].links
        self._mark[links] = True
        common = self._mark[self.plans[other].links].any()
        self._mark[links] = False
        return bool(common)


class Sharing:
    """Max-min fair rates on links of `bandwidth` bytes/s; `solves` counts those that had to be solved."""

    def __init__(self, bandwidth: np.ndarray) -> None:
        self.bandwidth = bandwidth
        self.shapes = Shapes(len(bandwidth))
        self.solves = 0
        self._solutions: dict[tuple[tuple[int, float], ...], Solution] = {}

    def leaves_room(self, shape: int, active: Mapping[int, Activity]) -> bool:
        """Whether any of those in flight may share a link with a shape."""
        near = self.shapes.near[shape]
        return len(active) > MANY or any(near[a.shape] for a in active.values())

    def reached(
        self,
        active: Mapping[int, Activity],
        changed: Iterable[Activity],
        left: Iterable[int],
    ) -> list[list[Activity]]:
        """Those in flight that share links with what changed, or with shapes that left, directly or through others.

        Returns
        -------
        list of list
            In groups that share nothing with each other, if they are few; in any case those of a group in their order.
        """
        if len(active) > MANY:
            return self._reached_of_many(list(active.values()), changed, left)
        rest, groups = list(active.values()), []
        for seed in self._seeds(rest, changed, left):
            if seed in rest:
                group, rest = self._connected(seed, rest)
                groups.append(sorted(group, key=BY_NUMBER) if len(group) > 1 else group)
        return groups

    def _seeds(
        self, active: list[Activity], changed: Iterable[Activity], left: Iterable[int]
    ) -> list[Activity]:
        """What changed, and those that shared a link with a shape that left."""
        seeds = list(changed)
        for shape in left:
            near = self.shapes.near[shape]
            seeds += [a for a in active if near[a.shape]]
        return seeds

    def _connected(
        self, seed: Activity, active: list[Activity]
    ) -> tuple[list[Activity], list[Activity]]:
        """Those that share links with the seed, directly or through others; and the rest."""
        rest = [a for a in active if a is not seed]
        group, todo = [seed], [seed]
        while todo and rest:
            near = self.shapes.near[todo.pop().shape]
            if neighbours := [a for a in rest if near[a.shape]]:
                rest = [a for a in rest if not near[a.shape]]
                group += neighbours
                todo += neighbours
        return group, rest

    def _reached_of_many(
        self, active: list[Activity], changed: Iterable[Activity], left: Iterable[int]
    ) -> list[list[Activity]]:
        """`reached`, in columns and in one group."""
        numbers = {a.number for a in changed}
        reached = np.fromiter((a.number in numbers for a in active), bool, len(active))
        touched = np.zeros(len(self.bandwidth), dtype=bool)
        for shape in left:
            touched[self.shapes.plans[shape].links] = True
        _spread(self._uses(active), reached, touched)
        group = [active[at] for at in np.flatnonzero(reached).tolist()]
        return [group] if group else []

    def _uses(self, sharers: Sequence[Activity]) -> Incidence:
        plans = [self.shapes.plans[a.shape] for a in sharers]
        return Incidence.of([p.links for p in plans], [p.usage for p in plans])

    def rates(self, sharers: Sequence[Activity]) -> Solution:
        """Payload bytes/s of all that share links, and what holds each: a link, or -1 for its own cap."""
        if len(sharers) > MANY:
            return self._solved(sharers)
        key = tuple([(a.shape, a.cap) for a in sharers])
        solution = self._solutions.get(key)
        if solution is None:
            if len(self._solutions) >= REMEMBERED:
                self._solutions.clear()
            solution = self._solutions[key] = self._solved(sharers)
        return solution

    def _solved(self, sharers: Sequence[Activity]) -> Solution:
        self.solves += 1
        if len(sharers) == 1:
            return self._alone(self.shapes.plans[sharers[0].shape], sharers[0].cap)
        caps = np.array([a.cap for a in sharers], dtype=np.float64)
        solved, bound = rates(self._uses(sharers), caps, self.bandwidth)
        return solved.tolist(), bound.tolist()

    def _alone(self, plan: OnLinks, cap: float) -> Solution:
        """One that shares its links with nobody."""
        if len(plan.links):
            with np.errstate(divide="ignore"):
                width = self.bandwidth[plan.links] / plan.usage
            narrowest = int(width.argmin())
            if width[narrowest] < cap:
                return [float(width[narrowest])], [int(plan.links[narrowest])]
        return [float(cap)], [-1]


def _spread(uses: Incidence, reached: np.ndarray, touched: np.ndarray) -> None:
    """Marks, in place, all activities reached from those marked and from the touched links."""
    activity, count = uses.activity, -1
    touched[uses.links[reached[activity]]] = True
    while count != (count := int(reached.sum())):
        on_touched = activity[touched[uses.links]]
        reached |= np.bincount(on_touched, minlength=len(reached)) > 0
        touched[uses.links[reached[activity]]] = True
