"""Finds the fastest layouts that fit: memory first, then bounds on the time, then a simulation of what is left.

Layouts are looked at best first, by a bound on their time, in rounds. One whose bound is no better than the last of
the best so far is left out, which cannot change the result: a bound is never above the step time. Rounds have a fixed
size, so that what is found, and what was left out, does not depend on the number of processes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from sim.analysis.prediction import Prediction
from sim.costs import load_gpu
from sim.errors import InputError, Mistake
from sim.spec.sections import Scenario
from sim.studies.search import work
from sim.studies.search.axes import Values
from sim.studies.search.bounds import Bound, sibling
from sim.studies.search.sampling import sampled
from sim.studies.search.space import Candidate, Clusters, space
from sim.tools.orphans import end_with_parent

ROUND = 16
MOST = 20_000  # layouts that are looked at one by one; above, --trials samples them
WORSE = 10.0  # a layout that does not fit costs so many seconds, and more by how much it lacks
FEWEST = 24  # layouts for which starting processes pays
Progress = Callable[[str, int, int], None]


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
    """

    top: int = 10
    over: Mapping[str, Values] = field(default_factory=dict)
    jobs: int = 1
    trials: int | None = None
    prune: bool = True


@dataclass(frozen=True)
class Ranked:
    """A layout that fits, and its predicted step."""

    candidate: Candidate
    result: Prediction


@dataclass(frozen=True)
class Found:
    """What a search found, the fastest first, and what became of the other layouts.

    Attributes
    ----------
    valid : int
        Layouts that the rules allow.
    refused : mapping
        Layouts that they refuse, by the key that is wrong.
    too_large : int
        Layouts that do not fit; `largest` counts the owner of most memory among them.
    least : tuple of (bytes, owner, capacity), or None
        Of the layouts that do not fit the one that comes nearest; None if all fit.
    too_slow : int
        Layouts left out by their bound.
    simulated, sampled : int
        Layouts simulated; layouts looked at (all, without `trials`).
    """

    ranked: tuple[Ranked, ...]
    batch: int
    valid: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Mistake] = field(default_factory=dict)
    too_large: int = 0
    largest: Mapping[str, int] = field(default_factory=dict)
    least: tuple[float, str, float] | None = None
    nearest: Candidate | None = None
    too_slow: int = 0
    simulated: int = 0
    sampled: int = 0


def search(
    base: Scenario,
    batch: int,
    options: Options = Options(),
    progress: Progress | None = None,
) -> Found:
    """The fastest layouts of `batch` samples a step that fit.

    Raises
    ------
    InputError
        If the space is larger than `MOST` and `trials` is None.
    """
    clusters = Clusters()
    every = space(base, batch, options.over, clusters)
    if len(every.candidates) > MOST and options.trials is None:
        found, hint = (
            f"{len(every.candidates)} layouts",
            "--trials N samples them; --over KEY=VALUES tries fewer",
        )
        raise InputError(Mistake(base.where, "search", found, f"at most {MOST}", hint))
    run = Exploration(options, clusters, progress or (lambda what, done, of: None))
    with run.pool(len(every.candidates)):
        if options.trials is not None and options.trials < len(every.candidates):
            chosen = sampled(every.candidates, options.trials, run.explore, run.cost)
        else:
            chosen = every.candidates
            run.explore(chosen)
        ranked = run.results()
    slow = len(chosen) - len(run.large) - len(run.times)
    return Found(
        ranked,
        batch,
        len(every.candidates),
        dict(every.refused.most_common()),
        every.examples,
        len(run.large),
        dict(Counter(b.owner for b in run.large.values()).most_common()),
        *run.nearest(chosen),
        slow,
        len(run.times),
        len(chosen),
    )


class Exploration:
    """What is known so far: bounds, and step times of what was simulated."""

    def __init__(
        self, options: Options, clusters: Clusters, progress: Progress
    ) -> None:
        self.options, self.clusters, self.progress = options, clusters, progress
        self.bounds: dict[int, Bound] = {}
        self.large: dict[int, Bound] = {}
        self.times: dict[int, float] = {}
        self.quick: dict[int, float] = {}
        self.known: dict[int, Candidate] = {}
        self.limits: dict[
            object, float
        ] = {}  # the largest micro batch that fits, by family
        self._map: Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]] = map

    def pool(self, count: int) -> AbstractContextManager[Any]:
        """Processes for a search of so many layouts; none for few."""
        if self.options.jobs == 1 or count < FEWEST:
            return nullcontext()
        made = ProcessPoolExecutor(
            self.options.jobs,
            mp_context=get_context("forkserver"),
            initializer=end_with_parent,
        )
        self._map = made.map
        return made

    def capacity(self, candidate: Candidate) -> float:
        return load_gpu(self.clusters.fabric(candidate.scenario).gpu_model).memory

    def cost(self, candidate: Candidate) -> float:
        """The step time; of a layout left out its bound; of one that does not fit much more."""
        index = candidate.index
        if index in self.times:
            return self.times[index]
        if index in self.large:
            lack = self.large[index].memory / self.capacity(candidate)
            return WORSE * (1.0 + lack)
        if index in self.bounds:
            return self.bounds[index].time
        return self.quick.get(index, 0.0)

    @property
    def threshold(self) -> float:
        """Seconds that a layout must stay under to be ranked."""
        best = sorted(self.times.values())[: self.options.top]
        return (
            best[-1]
            if self.options.prune and len(best) == self.options.top
            else float("inf")
        )

    # -- best first -------------------------------------------------------------------------------
    def explore(self, candidates: Sequence[Candidate]) -> None:
        """Simulates what may be among the best: by a quick bound, memory, a closer bound."""
        families: dict[object, list[Candidate]] = {}
        for candidate in candidates:
            families.setdefault(candidate.family, []).append(candidate)
        left = self._quick(candidates)[::-1]  # the lowest bound last
        ready: list[tuple[float, int, Candidate]] = []
        while left or ready:
            front = left[-1][0] if left else float("inf")
            if min(front, ready[0][0] if ready else front) >= self.threshold:
                break
            if ready and ready[0][0] <= front:
                self._simulate(ready, front)
            else:
                wanted = [left.pop()[2] for _ in range(min(ROUND, len(left)))]
                for candidate in self._fitting(wanted, families):
                    heapq.heappush(
                        ready,
                        (self.bounds[candidate.index].time, candidate.index, candidate),
                    )
            done = len(candidates) - len(left) - len(ready)
            self.progress(f"{len(self.times)} simulated", done, len(candidates))

    def _quick(
        self, candidates: Sequence[Candidate]
    ) -> list[tuple[float, int, Candidate]]:
        """Candidates by a bound that takes little to find, shared by those that it cannot tell apart."""
        groups: dict[object, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(sibling(candidate), []).append(candidate)
        found, done = [], 0
        for part in _chunks(list(groups.values()), 4 * ROUND):
            for group, time in zip(
                part, self._map(work.quickly, [group[0] for group in part]), strict=True
            ):
                found += [(time, candidate.index, candidate) for candidate in group]
                self.quick |= {candidate.index: time for candidate in group}
                done += len(group)
            self.progress("bounds", done, len(candidates))
        return sorted(found, key=lambda item: item[:2])

    def _fitting(
        self, wanted: Sequence[Candidate], families: Mapping[object, list[Candidate]]
    ) -> list[Candidate]:
        """Those of the candidates that fit, with their bounds known."""
        fresh = list(
            dict.fromkeys(c.family for c in wanted if c.family not in self.limits)
        )
        for family, found in zip(
            fresh,
            self._map(work.limited, [families[name] for name in fresh]),
            strict=True,
        ):
            self._note(family, families[family], found)
        fits = [
            c
            for c in wanted
            if c.index not in self.large and _samples(c) <= self.limits[c.family]
        ]
        missing = [c for c in fits if c.index not in self.bounds]
        for candidate, one in zip(
            missing, self._map(work.bounded, missing), strict=True
        ):
            if one is not None:
                self.bounds[candidate.index] = one
        return [c for c in fits if c.index in self.bounds]

    def _note(
        self,
        name: object,
        family: Sequence[Candidate],
        found: Sequence[tuple[int, Bound]],
    ) -> None:
        known = dict(found)
        over = [
            at for at, one in known.items() if one.memory > self.capacity(family[at])
        ]
        first = min(over, default=len(family))
        self.limits[name] = _samples(family[first - 1]) if first else 0
        for at, candidate in enumerate(family):
            if at >= first:
                self.large[candidate.index] = known.get(at, known[first])
            elif at in known:
                self.bounds[candidate.index] = known[at]

    def _simulate(
        self, ready: list[tuple[float, int, Candidate]], front: float
    ) -> None:
        """A round of those whose bounds are below all that was not looked at yet."""
        wanted: list[Candidate] = []
        while (
            ready
            and len(wanted) < ROUND
            and ready[0][0] <= front
            and ready[0][0] < self.threshold
        ):
            wanted.append(heapq.heappop(ready)[2])
        for candidate, (time, needed, owner) in zip(
            wanted, self._map(work.simulated, wanted), strict=True
        ):
            if needed > self.capacity(candidate):
                self.large[candidate.index] = Bound(needed, owner, time)
            elif time < float("inf"):
                self.times[candidate.index] = time
                self.known[candidate.index] = candidate

    # -- what came of it --------------------------------------------------------------------------
    def nearest(
        self, candidates: Sequence[Candidate]
    ) -> tuple[tuple[float, str, float] | None, Candidate | None]:
        """The layout that lacks least memory, of those that do not fit."""
        known = [(self.large[c.index], c) for c in candidates if c.index in self.large]
        if not known:
            return None, None
        one, candidate = min(
            known,
            key=lambda item: (item[0].memory - self.capacity(item[1]), item[1].index),
        )
        return (one.memory, one.owner, self.capacity(candidate)), candidate

    def results(self) -> tuple[Ranked, ...]:
        order = sorted(self.times, key=lambda index: (self.times[index], index))[
            : self.options.top
        ]
        best = [self.known[index] for index in order]
        return tuple(Ranked(c, work.result(c)) for c in best)


def _samples(candidate: Candidate) -> int:
    return candidate.scenario.training.micro_batch


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
