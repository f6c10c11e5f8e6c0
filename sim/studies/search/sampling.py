"""Samples of a space that is too large to look at one by one, drawn by optuna."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.extras import MissingPackage
from sim.studies.search.space import Candidate

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
    try:
        import optuna
    except ImportError:
        raise MissingPackage("optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=SEED, n_startup_trials=2 * ROUND)
    )
    values = _values(candidates)
    left = {c.index: c for c in candidates}
    taken: list[Candidate] = []
    while left and len(taken) < trials:
        asked = []
        for _ in range(min(ROUND, trials - len(taken), len(left))):
            trial = study.ask()
            wanted = {
                key: _suggest(trial, key, choices) for key, choices in values.items()
            }
            candidate = _closest(left.values(), wanted)
            del left[candidate.index]
            asked.append((trial, candidate))
        explore([candidate for _, candidate in asked])
        for trial, candidate in asked:
            study.tell(trial, cost(candidate))
        taken += [candidate for _, candidate in asked]
    return sorted(taken, key=lambda c: c.index)


def _values(candidates: Sequence[Candidate]) -> dict[str, list[Any]]:
    """Values by key, of keys that have several."""
    found: dict[str, dict[Any, None]] = {}
    for candidate in candidates:
        for key, value in candidate.chosen:
            found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items() if len(values) > 1}


def _suggest(trial: Any, key: str, choices: list[Any]) -> Any:
    return choices[trial.suggest_categorical(key, list(range(len(choices))))]


def _closest(left: Any, wanted: dict[str, Any]) -> Candidate:
    """The layout that agrees with most values; the first of equals."""

    def agreed(candidate: Candidate) -> int:
        return sum(
            key in wanted and wanted[key] == value for key, value in candidate.chosen
        )

    best: Candidate = max(left, key=lambda c: (agreed(c), -c.index))
    return best
