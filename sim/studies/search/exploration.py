"""Looks at layouts until the fastest that fit are known: memory first, then bounds, then a simulation of the rest.

Layouts are looked at best first, by a bound on their time, in rounds. One whose bound is no better than the last of
the best so far is left out, which cannot change the result: a bound is never above the step time. Rounds have a fixed
size, so that what is found, and what was left out, does not depend on the number of processes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.studies.ranking import FASTEST, Objective
from prestep.sim.studies.search import work
from prestep.sim.studies.search.axes import Values
from prestep.sim.studies.search.bounds import Bound, Work, sibling
from prestep.sim.studies.search.space import Candidate, Clusters
from prestep.sim.tools.workers import Workers
from prestep.workloads.job.layout import microbatches_of

ROUND = 16
SURE = 0.9  # of a GPU's memory: a layout whose quick bound is below fits, or its simulation will tell
SCOUTS = 4  # layouts simulated before others are looked at
WORSE = 10.0  # a layout that does not fit costs so many seconds, and more by how much it lacks
WATTS_OF_WORSE = 1e4  # W by GPU of such a layout
LONG = (
    2000  # passes through stages of a step from which a few of them are simulated first
)
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
        self.quick: dict[int, Bound] = {}
        self.known: dict[int, Candidate] = {}
        # Those of the large whose memory is a quick bound.
        self.roughly: set[int] = set()
        # Those with a close bound.
        self.close: set[int] = set()
        # Layouts that differ in the micro batch only.
        self.families: Mapping[object, list[Candidate]] = {}
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
        return self.least(
            candidate, self.quick[index].time if index in self.quick else 0.0
        )

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
        self.families = _families(candidates)
        left = self._quick(candidates)[::-1]  # the lowest bound last
        ready: list[Bounded] = []
        while left or ready:
            front = left[-1][0] if left else float("inf")
            if min(front, ready[0][0] if ready else front) >= self.threshold:
                break
            if ready and ready[0][0] <= front:
                self._simulate(ready, front)
            else:
                following = [left.pop()[2] for _ in range(min(ROUND, len(left)))]
                for candidate in self._fitting(following):
                    heapq.heappush(ready, self._bounded(candidate))
            done = len(candidates) - len(left) - len(ready)
            self.progress(f"{len(self.times)} simulated", done, len(candidates))

    def _bounded(self, candidate: Candidate) -> Bounded:
        bound = self.least(candidate, self.bounds[candidate.index].time)
        return bound, candidate.index, candidate

    def _quick(self, candidates: Sequence[Candidate]) -> list[Bounded]:
        """Candidates that may fit by a bound that takes little to find, shared by those that it cannot tell apart."""
        groups: dict[object, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(sibling(candidate), []).append(candidate)
        # Small microbatches of wide tensor parallelism fit most often: with them something good is found at once.
        ordered = sorted(groups.values(), key=lambda group: _promise(group[0]))
        done = 0
        for part in _chunks(ordered, ROUND):
            bounds = self._map(work.quickly, [group[0] for group in part])
            for group, least in zip(part, bounds, strict=True):
                for candidate in group:
                    self._bound_quickly(candidate, least)
            if not done and len(ordered) > len(part):
                self._scout(self._by_bound(chain.from_iterable(part)))
            done += sum(map(len, part))
            self.progress("bounds", done, len(candidates))
        return self._by_bound(candidates)

    def _by_bound(self, candidates: Iterable[Candidate]) -> list[Bounded]:
        """Those that may fit and were not simulated, the lowest bound first."""
        left = [c for c in candidates if c.index not in {**self.large, **self.times}]
        bounded = [(self.least(c, self.quick[c.index].time), c.index, c) for c in left]
        return sorted(bounded, key=lambda item: item[:2])

    def _scout(self, bounded: Sequence[Bounded]) -> None:
        """Simulates the most promising of a few that fit, before others are looked at."""
        for part in _chunks(bounded[: 8 * ROUND], ROUND):
            fitting = self._fitting([one[2] for one in part])
            least = sorted(fitting, key=lambda c: (_passes(c), c.index))
            first = sorted(map(self._bounded, least[:SCOUTS]))
            self._simulate(first, float("inf"))
            if self.scores:
                return

    def _bound_quickly(self, candidate: Candidate, work: Work) -> None:
        bound = work.bound(candidate.scenario)
        self.quick[candidate.index] = bound
        if bound.memory > self.capacity(candidate):
            self.large[candidate.index] = bound
            self.roughly.add(candidate.index)

    def _fitting(self, wanted: Sequence[Candidate]) -> list[Candidate]:
        """Those that fit, with their bounds known; larger micro batches of the others do not fit, either."""
        fresh = [c for c in wanted if c.index not in {**self.large, **self.bounds}]
        for candidate in fresh:
            rough = self.quick[candidate.index]
            if 0.0 < rough.memory < SURE * self.capacity(candidate):
                self.bounds[candidate.index] = rough
        asked = [c for c in fresh if c.index not in self.bounds]
        for candidate, bound in zip(asked, self._map(work.bounded, asked), strict=True):
            if bound is not None and bound.memory > self.capacity(candidate):
                self._too_large(candidate, bound)
            elif bound is not None:
                self.bounds[candidate.index] = bound
        return [c for c in wanted if c.index in self.bounds]

    def _too_large(self, candidate: Candidate, bound: Bound) -> None:
        self.roughly.discard(candidate.index)
        self.large[candidate.index] = bound
        for larger in self.families.get(candidate.family, ()):
            if _samples(larger) > _samples(candidate):
                self.large.setdefault(larger.index, bound)

    def _simulate(self, ready: list[Bounded], front: float) -> None:
        """A round of those whose bounds are below all that was not looked at yet."""
        wanted: list[Candidate] = []
        while ready and len(wanted) < ROUND and self._may_rank(ready[0][0], front):
            wanted.append(heapq.heappop(ready)[2])
        wanted = self._without_slow(wanted, ready)
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

    def _without_slow(
        self, wanted: Sequence[Candidate], ready: list[Bounded]
    ) -> list[Candidate]:
        """Those to simulate whole; long pipelines are bounded closely first, and wait for their turn."""
        long = [c for c in wanted if _passes(c) > LONG and c.index not in self.close]
        for candidate, time in zip(long, self._map(work.closely, long), strict=True):
            self.close.add(candidate.index)
            known = self.bounds[candidate.index]
            self.bounds[candidate.index] = replace(known, time=max(time, known.time))
            heapq.heappush(ready, self._bounded(candidate))
        again = {candidate.index for candidate in long}
        return [candidate for candidate in wanted if candidate.index not in again]

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


def _passes(candidate: Candidate) -> int:
    """Passes through a stage in a step: what a simulation takes grows with them."""
    p = candidate.scenario.parallel
    every = microbatches_of(candidate.scenario)
    return every * p.pp * p.vpp if every >= 2 * p.pp > 2 else 0


def _promise(candidate: Candidate) -> tuple[int, int, int]:
    """Layouts that probably fit come first."""
    return _samples(candidate), -candidate.scenario.parallel.tp, candidate.index


def _samples(candidate: Candidate) -> int:
    return candidate.scenario.training.micro_batch


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
