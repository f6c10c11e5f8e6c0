"""Finds the fastest layouts that fit: memory first, then bounds on the time, then a simulation of what is left.

Layouts are simulated in rounds, the lowest bound first. One whose bound is no better than the last of the best so far
is left out, which cannot change the result: a bound is never above the step time. Rounds have a fixed size, so that
what is found, and what was left out, does not depend on the number of processes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, Mistake, PrestepError
from sim.search.axes import Values
from sim.search.bounds import Bound, bound
from sim.search.space import Candidate, Clusters, space

if TYPE_CHECKING:
    from sim.result import Result
    from sim.sections import Scenario

ROUND = 16
MOST = 20_000  # layouts that are looked at one by one; above, --trials samples them
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
    result: Result


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


def search(base: Scenario, batch: int, options: Options = Options(), progress: Progress | None = None) -> Found:
    """The fastest layouts of `batch` samples a step that fit.

    Raises
    ------
    InputError
        If the space is larger than `MOST` and `trials` is None.
    """
    clusters = Clusters()
    every = space(base, batch, options.over, clusters)
    if len(every.candidates) > MOST and options.trials is None:
        found, hint = f"{len(every.candidates)} layouts", "--trials N samples them; --over KEY=VALUES tries fewer"
        raise InputError(Mistake(base.where, "search", found, f"at most {MOST}", hint))
    run = _Search(options, clusters, progress or (lambda what, done, of: None))
    with run.pool(len(every.candidates)):
        if options.trials is not None and options.trials < len(every.candidates):
            from sim.search.sampling import sampled

            chosen = sampled(every.candidates, options.trials, run)
        else:
            chosen = every.candidates
            run.assess(chosen)
            run.simulate(chosen)
        ranked = run.results()
    return Found(
        ranked, batch, len(every.candidates), dict(every.refused.most_common()), every.examples, len(run.large),
        dict(Counter(b.owner for b in run.large.values()).most_common()), *run.nearest(chosen), run.slow, len(run.times),
        len(chosen),
    )  # fmt: skip


class _Search:
    """What is known so far: bounds, and step times of what was simulated."""

    def __init__(self, options: Options, clusters: Clusters, progress: Progress) -> None:
        self.options, self.clusters, self.progress = options, clusters, progress
        self.bounds: dict[int, Bound] = {}
        self.large: dict[int, Bound] = {}
        self.times: dict[int, float] = {}
        self.known: dict[int, Candidate] = {}
        self.slow = 0
        self._map: Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]] = map

    def pool(self, count: int) -> Any:
        """Processes for a search of so many layouts; one alone for few."""
        import contextlib

        if self.options.jobs == 1 or count < FEWEST:
            return contextlib.nullcontext()
        made = ProcessPoolExecutor(self.options.jobs, mp_context=get_context("forkserver"))
        self._map = made.map
        return made

    def capacity(self, candidate: Candidate) -> float:
        from sim.costs import load_gpu

        return load_gpu(self.clusters.fabric(candidate.scenario).gpu_model).memory

    # -- memory and bounds ------------------------------------------------------------------------
    def assess(self, candidates: Sequence[Candidate]) -> None:
        """Bounds of all that may fit: in a family, the first micro batch that does not fit ends it."""
        families = [list(group) for _, group in itertools.groupby(candidates, key=lambda c: c.family)]
        done = 0
        for chunk in _chunks(families, ROUND):
            for family, bounds in zip(chunk, self._map(_assessed, chunk), strict=True):
                self._note(family, bounds)
            done += sum(map(len, chunk))
            self.progress("memory", done, len(candidates))

    def _note(self, family: Sequence[Candidate], bounds: Sequence[Bound | None]) -> None:
        over: Bound | None = None
        for candidate, one in itertools.zip_longest(family, bounds):
            one = over if one is None and over is not None else one
            if one is None:
                continue  # refused when its step was recorded
            if one.memory > self.capacity(candidate):
                over = over or one
                self.large[candidate.index] = one
            else:
                self.bounds[candidate.index] = one

    def nearest(self, candidates: Sequence[Candidate]) -> tuple[tuple[float, str, float] | None, Candidate | None]:
        """The layout that lacks least memory, of those that do not fit."""
        lacking = [(self.large[c.index].memory - self.capacity(c), c.index, c) for c in candidates if c.index in self.large]
        if not lacking:
            return None, None
        _, index, candidate = min(lacking, key=lambda item: item[:2])
        return (self.large[index].memory, self.large[index].owner, self.capacity(candidate)), candidate

    # -- simulation -------------------------------------------------------------------------------
    @property
    def threshold(self) -> float:
        """Seconds that a layout must stay under to be ranked."""
        best = sorted(self.times.values())[: self.options.top]
        return best[-1] if len(best) == self.options.top else float("inf")

    def simulate(self, candidates: Sequence[Candidate]) -> None:
        """Step times of all that may be among the best."""
        left = sorted(
            (c for c in candidates if c.index in self.bounds), key=lambda c: (self.bounds[c.index].time, c.index)
        )
        for at in range(0, len(left), ROUND):
            limit = self.threshold if self.options.prune else float("inf")
            wanted = [c for c in left[at : at + ROUND] if self.bounds[c.index].time < limit]
            self.slow += len(left[at : at + ROUND]) - len(wanted)
            for candidate, (time, needed, owner) in zip(wanted, self._map(_simulated, wanted), strict=True):
                if needed > self.capacity(candidate):
                    self.large[candidate.index] = Bound(needed, owner, time)
                elif time < float("inf"):
                    self.times[candidate.index] = time
                    self.known[candidate.index] = candidate
            self.progress("simulated", min(at + ROUND, len(left)), len(left))

    def results(self) -> tuple[Ranked, ...]:
        order = sorted(self.times, key=lambda index: (self.times[index], index))[: self.options.top]
        best = [self.known[index] for index in order]
        return tuple(Ranked(c, _result(c)) for c in best)


# -- in the processes ------------------------------------------------------------------------------
_CLUSTERS = Clusters()  # of this process


def _assessed(family: Sequence[Candidate]) -> list[Bound | None]:
    """Bounds of a family's members up to the first that does not fit; None for one that is refused."""
    from sim.costs import load_gpu

    found: list[Bound | None] = []
    for candidate in family:
        fabric = _CLUSTERS.fabric(candidate.scenario)
        try:
            found.append(bound(candidate.scenario, fabric))
        except InputError:
            found.append(None)
            continue
        last = found[-1]
        if last is not None and last.memory > load_gpu(fabric.gpu_model).memory:
            break
    return found


def _simulated(candidate: Candidate) -> tuple[float, float, str]:
    """Seconds of a step, bytes of the fullest rank and their largest owner; inf for one that is refused."""
    from sim.memory import fullest
    from sim.predict import simulate
    from sim.report import step_time

    fabric = _CLUSTERS.fabric(candidate.scenario)
    try:
        made = simulate(candidate.scenario, fabric=fabric)
    except PrestepError:
        return float("inf"), 0.0, ""
    time = step_time(made)
    needed = fullest(made.lowered, candidate.scenario, fabric, time)
    return time, needed.total, needed.largest_owner


def _result(candidate: Candidate) -> Result:
    from sim.predict import simulate
    from sim.report import result_of

    return result_of(simulate(candidate.scenario, fabric=_CLUSTERS.fabric(candidate.scenario)))


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
