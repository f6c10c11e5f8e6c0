"""Samples of a space that is too large to look at one by one, drawn by optuna."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prestep.sim.extras import MissingPackage
from prestep.sim.studies.search.space import Candidate

SEED = 0  # the same samples every time
ROUND = 16  # asked for before any is told


def sampled(
    candidates: Sequence[Candidate],
    trials: int,
    explore: Callable[[Sequence[Candidate]], None],
    cost: Callable[[Candidate], float],
) -> list[Candidate]:
    """So many of the candidates, each explored: a tree-structured Parzen estimator proposes values by key, and the
    valid layout that agrees with most of them is taken. `explore` looks at candidates; `cost` of one that was looked at
    is what is minimised.

    Raises
    ------
    MissingPackage
        If optuna is not installed.
    """
    study, values = _study(), _values(candidates)
    left = {candidate.index: candidate for candidate in candidates}
    taken: list[Candidate] = []
    while left and len(taken) < trials:
        count = min(ROUND, trials - len(taken), len(left))
        asked = [_asked(study, values, left) for _ in range(count)]
        explore([candidate for _, candidate in asked])
        for trial, candidate in asked:
            study.tell(trial, cost(candidate))
        taken += [candidate for _, candidate in asked]
    return sorted(taken, key=lambda candidate: candidate.index)


def _study() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingPackage("optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=2 * ROUND)
    return optuna.create_study(sampler=sampler)


def _asked(
    study: Any, values: Mapping[str, list[Any]], left: dict[int, Candidate]
) -> tuple[Any, Candidate]:
    """(trial, the layout nearest to what it proposes), taken out of those that are left."""
    trial = study.ask()
    proposed = {key: _suggest(trial, key, choices) for key, choices in values.items()}
    candidate = _closest(left.values(), proposed)
    del left[candidate.index]
    return trial, candidate


def _values(candidates: Sequence[Candidate]) -> dict[str, list[Any]]:
    """Values by key, of keys that have several."""
    values: dict[str, dict[Any, None]] = {}
    for candidate in candidates:
        for key, value in candidate.chosen:
            values.setdefault(key, {})[value] = None
    return {key: list(several) for key, several in values.items() if len(several) > 1}


def _suggest(trial: Any, key: str, choices: list[Any]) -> Any:
    return choices[trial.suggest_categorical(key, list(range(len(choices))))]


def _closest(left: Iterable[Candidate], proposed: Mapping[str, Any]) -> Candidate:
    """The layout that agrees with most values; the first of equals."""

    def agreed(candidate: Candidate) -> int:
        return sum(
            key in proposed and proposed[key] == value
            for key, value in candidate.chosen
        )

    return max(left, key=lambda candidate: (agreed(candidate), -candidate.index))
