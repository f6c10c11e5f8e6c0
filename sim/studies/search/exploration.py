"""Looks at layouts until the fastest that fit are known: memory first, then bounds, then a simulation of the rest.

Layouts are looked at best first, by a bound on their time, in rounds. One whose bound is no better than the last of
the best so far is left out, which cannot change the result: a bound is never above the step time. Rounds have a fixed
size, so that what is found, and what was left out, does not depend on the number of processes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from prestep.sim.analysis.memory import CONTEXT
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.studies.ranking import FASTEST, Objective
from prestep.sim.studies.search import work
from prestep.sim.studies.search.axes import Values
from prestep.sim.studies.search.bounds import Bound, Work, sibling
from prestep.sim.studies.search.space import Candidate, Clusters
from prestep.sim.tools.workers import Workers

ROUND = 16
WORSE = 10.0  # a layout that does not fit costs so many seconds, and more by how much it lacks
WATTS_OF_WORSE = 1e4  # W by GPU of such a layout
FEWEST = 24  # layouts for which starting processes pays
Progress = Callable[[str, int, int], None]
Bounded = tuple[float, int, Candidate]  # (bound on what is ranked, index, layout)
Better = Callable[[Candidate, float], None]


def _ignore(candidate: Candidate, seconds: float) -> None:
    """Nobody waits for better layouts."""


@dataclass(frozen=True)
class Options:
    """How to search.

    Attributes
    ----------
    top : int
        Layouts to rank.
    over : mapping
        Values by key, in place of the default ones; keys of no layout are combined with all.
    jobs : int
        Processes.
    trials : int or None
        Layouts to look at, chosen by optuna; None: all.
    prune : bool
        False: every layout that fits is simulated (what pruning is tested against).
    objective : Objective
        What is ranked: time, energy or cost of a step.
    better : function of (layout, seconds)
        Is called with every layout that is better than all before it.
    """

    top: int = 10
    over: Mapping[str, Values] = field(default_factory=dict)
    jobs: int = 1
    trials: int | None = None
    prune: bool = True
    objective: Objective = FASTEST
    better: Better = _ignore


@dataclass(frozen=True)
class Ranked:
    """A layout that fits, and its predicted step."""

    candidate: Candidate
    result: Prediction


class Exploration:
    """What is known so far: bounds, and step times and scores (what is ranked) of what was simulated."""

    def __init__(
        self, options: Options, clusters: Clusters, progress: Progress
    ) -> None:
        self.options, self.clusters, self.progress = options, clusters, progress
        self.bounds: dict[int, Bound] = {}
        self.large: dict[int, Bound] = {}
        self.times: dict[int, float] = {}
        self.scores: dict[int, float] = {}
        self.quick: dict[int, float] = {}
        self.known: dict[int, Candidate] = {}
        # Those of the large whose memory is a quick bound.
        self.roughly: set[int] = set()
        # The largest micro batch that fits, by family.
        self.limits: dict[object, float] = {}
        self._pool: Workers | None = None
        self._map: Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]] = map

    def pool(self, count: int) -> AbstractContextManager[Any]:
        """Processes for a search of so many layouts; none for few."""
        if self.options.jobs == 1 or count < FEWEST:
            return nullcontext()
        made = Workers(self.options.jobs, "forkserver")
        self._map, self._pool = made.map, made
        return made

    def stop(self) -> None:
        """Gives up what processes were asked for; what is asked later is done here."""
        self._map = map
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def capacity(self, candidate: Candidate) -> float:
        return load_gpu(self.clusters.fabric(candidate.scenario).gpu_model).memory

    def cost(self, candidate: Candidate) -> float:
        """The score; of a layout left out its bound; of one that does not fit much more."""
        index = candidate.index
        if index in self.scores:
            return self.scores[index]
        if index in self.large:
            lack = self.large[index].memory / self.capacity(candidate)
            gpus = work.world_of(candidate)
            worse = self.options.objective.score(WORSE, gpus, gpus * WATTS_OF_WORSE)
            return worse * (1.0 + lack)
        if index in self.bounds:
            return self.least(candidate, self.bounds[index].time)
        return self.least(candidate, self.quick.get(index, 0.0))

    def least(self, candidate: Candidate, time: float) -> float:
        """The score that a layout has at least, which takes at least so many seconds: its GPUs draw something."""
        objective = self.options.objective
        watts = work.least_watts(candidate) if objective.needs_watts else 0.0
        return objective.score(time, work.world_of(candidate), watts)

    @property
    def threshold(self) -> float:
        """The score that a layout must stay under to be ranked."""
        best = sorted(self.scores.values())[: self.options.top]
        if self.options.prune and len(best) == self.options.top:
            return best[-1]
        return float("inf")

    # -- best first -------------------------------------------------------------------------------
    def explore(self, candidates: Sequence[Candidate]) -> None:
        """Simulates what may be among the best: by a quick bound, memory, a closer bound."""
        families = _families(candidates)
        left = self._quick(candidates, families)[::-1]  # the lowest bound last
        ready: list[Bounded] = []
        while left or ready:
            front = left[-1][0] if left else float("inf")
            if min(front, ready[0][0] if ready else front) >= self.threshold:
                break
            if ready and ready[0][0] <= front:
                self._simulate(ready, front)
            else:
                following = [left.pop()[2] for _ in range(min(ROUND, len(left)))]
                for candidate in self._fitting(following, families):
                    heapq.heappush(ready, self._bounded(candidate))
            done = len(candidates) - len(left) - len(ready)
            self.progress(f"{len(self.times)} simulated", done, len(candidates))

    def _bounded(self, candidate: Candidate) -> Bounded:
        bound = self.least(candidate, self.bounds[candidate.index].time)
        return bound, candidate.index, candidate

    def _quick(
        self,
        candidates: Sequence[Candidate],
        families: Mapping[object, list[Candidate]],
    ) -> list[Bounded]:
        """Candidates that may fit by a bound that takes little to find, shared by those that it cannot tell apart."""
        groups: dict[object, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(sibling(candidate), []).append(candidate)
        # Small microbatches fit most often, and keep pipelines busy: with them something good is found at once.
        ordered = sorted(groups.values(), key=lambda group: _samples(group[0]))
        done = 0
        for part in _chunks(ordered, 4 * ROUND):
            bounds = self._map(work.quickly, [group[0] for group in part])
            for group, least in zip(part, bounds, strict=True):
                for candidate in group:
                    self._bound_quickly(candidate, least)
            if not done and len(ordered) > len(part):
                self._scout(self._by_bound(chain.from_iterable(part)), families)
            done += sum(map(len, part))
            self.progress("bounds", done, len(candidates))
        return self._by_bound(candidates)

    def _by_bound(self, candidates: Iterable[Candidate]) -> list[Bounded]:
        """Those that may fit and were not simulated, the lowest bound first."""
        left = [c for c in candidates if c.index not in {**self.large, **self.times}]
        bounded = [(self.least(c, self.quick[c.index]), c.index, c) for c in left]
        return sorted(bounded, key=lambda item: item[:2])

    def _scout(
        self, bounded: Sequence[Bounded], families: Mapping[object, list[Candidate]]
    ) -> None:
        """Simulates the most promising of a few that fit, before others are looked at."""
        for part in _chunks(bounded[: 8 * ROUND], ROUND):
            fitting = self._fitting([one[2] for one in part], families)
            self._simulate([self._bounded(one) for one in fitting], float("inf"))
            if self.scores:
                return

    def _bound_quickly(self, candidate: Candidate, work: Work) -> None:
        held, time = (
            work.least_memory(candidate.scenario),
            work.least(candidate.scenario),
        )
        self.quick[candidate.index] = time
        if held.total + CONTEXT > self.capacity(candidate):
            needed = held.total + CONTEXT
            self.large[candidate.index] = Bound(needed, held.largest_owner, time)
            self.roughly.add(candidate.index)

    def _fitting(
        self, wanted: Sequence[Candidate], families: Mapping[object, list[Candidate]]
    ) -> list[Candidate]:
        """Those of the candidates that fit, with their bounds known."""
        fresh = dict.fromkeys(c.family for c in wanted if c.family not in self.limits)
        limits = self._map(work.limited, [families[name] for name in fresh])
        for family, bounds in zip(fresh, limits, strict=True):
            self._note(family, families[family], bounds)
        fitting = [
            c
            for c in wanted
            if c.index not in self.large and _samples(c) <= self.limits[c.family]
        ]
        missing = [c for c in fitting if c.index not in self.bounds]
        for candidate, bound in zip(
            missing, self._map(work.bounded, missing), strict=True
        ):
            if bound is not None:
                self.bounds[candidate.index] = bound
        return [c for c in fitting if c.index in self.bounds]

    def _note(
        self,
        name: object,
        family: Sequence[Candidate],
        bounds: Sequence[tuple[int, Bound]],
    ) -> None:
        """Keeps the bounds of a family (by place in it), and the largest micro batch that fits."""
        known = dict(bounds)
        too_large = [
            place
            for place, bound in known.items()
            if bound.memory > self.capacity(family[place])
        ]
        first = min(too_large, default=len(family))
        self.limits[name] = _samples(family[first - 1]) if first else 0
        for place, candidate in enumerate(family):
            if place >= first:
                self.large[candidate.index] = known.get(place, known[first])
            elif place in known:
                self.bounds[candidate.index] = known[place]

    def _simulate(self, ready: list[Bounded], front: float) -> None:
        """A round of those whose bounds are below all that was not looked at yet."""
        wanted: list[Candidate] = []
        while ready and len(wanted) < ROUND and self._may_rank(ready[0][0], front):
            wanted.append(heapq.heappop(ready)[2])
        objective = self.options.objective
        simulate = work.with_watts if objective.needs_watts else work.simulated
        simulated = self._map(simulate, wanted)
        for candidate, found in zip(wanted, simulated, strict=True):
            time, watts, needed, owner = found
            if needed > self.capacity(candidate):
                self.large[candidate.index] = Bound(needed, owner, time)
            elif time < float("inf"):
                gpus = work.world_of(candidate)
                self.times[candidate.index] = time
                self._keep(candidate, objective.score(time, gpus, watts))

    def _keep(self, candidate: Candidate, score: float) -> None:
        best = min(self.scores.values(), default=float("inf"))
        self.scores[candidate.index] = score
        self.known[candidate.index] = candidate
        if score < best:
            self.options.better(candidate, self.times[candidate.index])

    def _may_rank(self, bound: float, front: float) -> bool:
        return bound <= front and bound < self.threshold

    # -- what came of it --------------------------------------------------------------------------
    def nearest(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The layout that lacks least memory, of those that do not fit; what it needs is no quick bound."""
        large = [c for c in candidates if c.index in self.large]
        while large:
            best = min(large, key=lambda c: (self._lack(c), c.index))
            if best.index not in self.roughly:
                return best
            self.roughly.remove(best.index)
            self.large[best.index] = work.bounded(best) or self.large[best.index]
        return None

    def _lack(self, candidate: Candidate) -> float:
        return self.large[candidate.index].memory - self.capacity(candidate)

    def results(self) -> tuple[Ranked, ...]:
        order = sorted(self.scores, key=lambda index: (self.scores[index], index))
        best = [self.known[index] for index in order[: self.options.top]]
        return tuple(map(Ranked, best, self._map(work.result, best)))


def _families(candidates: Sequence[Candidate]) -> dict[object, list[Candidate]]:
    families: dict[object, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(candidate.family, []).append(candidate)
    return families


def _samples(candidate: Candidate) -> int:
    return candidate.scenario.training.micro_batch


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
