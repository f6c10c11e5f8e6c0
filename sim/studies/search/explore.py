"""The search for the fastest layouts of a step that fit: enumerates them, explores them, ranks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.search.exploration import (
    Exploration,
    Options,
    Progress,
    Ranked,
)
from prestep.sim.studies.search.sampling import sampled
from prestep.sim.studies.search.space import Candidate, Clusters, space

DEFAULTS = Options()
MOST = 20_000  # layouts that are looked at one by one; above, --trials samples them


@dataclass(frozen=True)
class Ranking:
    """The layouts that a search ranks, the fastest first, and what became of the others.

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
    stopped : bool
        Whether somebody stopped the search: better layouts may be left.
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
    stopped: bool = False


def search(
    base: Scenario,
    batch: int,
    options: Options = DEFAULTS,
    progress: Progress | None = None,
) -> Ranking:
    """The fastest layouts of `batch` samples a step that fit.

    Raises
    ------
    InputError
        If the space is larger than `MOST` and `trials` is None.
    """
    clusters = Clusters()
    layouts = space(base, batch, options.over, clusters)
    count = len(layouts.candidates)
    if count > MOST and options.trials is None:
        raise InputError(_too_many(base, count))
    run = Exploration(options, clusters, progress or (lambda what, done, of: None))
    stopped = False
    with run.pool(count):
        try:
            chosen = _explored(run, layouts.candidates, options.trials)
        except KeyboardInterrupt:
            if not run.scores:
                raise
            run.stop()
            chosen, stopped = layouts.candidates, True
        ranked = run.results()
    return Ranking(
        ranked=ranked,
        batch=batch,
        valid=count,
        refused=dict(layouts.refused.most_common()),
        examples=layouts.examples,
        stopped=stopped,
        **_others(run, chosen),
    )


def _too_many(base: Scenario, count: int) -> Mistake:
    hint = "--trials N samples them; --over KEY=VALUES tries fewer"
    layouts = f"{count} layouts"
    return Mistake(base.where, "search", layouts, f"at most {MOST}", hint)


def _explored(
    run: Exploration, candidates: Sequence[Candidate], trials: int | None
) -> Sequence[Candidate]:
    """The candidates that the exploration looks at: so many trials, or all."""
    if trials is not None and trials < len(candidates):
        return sampled(candidates, trials, run.explore, run.cost)
    run.explore(candidates)
    return candidates


def _others(run: Exploration, chosen: Sequence[Candidate]) -> dict[str, Any]:
    """The fields of a ranking that say what became of the layouts that are not in it."""
    owners = Counter(bound.owner for bound in run.large.values())
    nearest, least = run.nearest(chosen), None
    if nearest is not None:
        bound = run.large[nearest.index]
        least = bound.memory, bound.owner, run.capacity(nearest)
    return {
        "too_large": len(run.large),
        "largest": dict(owners.most_common()),
        "least": least,
        "nearest": nearest,
        "too_slow": len(chosen) - len(run.large) - len(run.times),
        "simulated": len(run.times),
        "sampled": len(chosen),
    }
