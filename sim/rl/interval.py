"""How sure an RL step is: errors of its phases, that of training as its own prediction has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prestep.sim.costs.spreads import NOMINAL, quantile

if TYPE_CHECKING:
    from prestep.sim.rl.step import RlStep

#: Relative standard deviations of what has no measurement of its own: guesses.
SPREADS = {"rollout": 0.25, "environment": 0.5, "refit": 0.35, "driver": 0.5}

#: No step is surer than one of a group that no constant was fitted to: relative error (root of the mean square) of rows
#: for fitting with constants of the other group alone. Evidence: fitted, python -m lab.fit.rl prints it.
UNSEEN = 0.22


@dataclass(frozen=True)
class Interval:
    """Between which times the measured step lies with the probability `nominal`, s."""

    low: float
    high: float
    spread: float
    nominal: float = NOMINAL


def interval_of(step: RlStep) -> Interval:
    """The interval; phases that another hides count by the share of the step that they pace.

    Training's own spread is that of training steps; what NeMo RL does between them nobody has measured. So a step that
    waits for training alone would be too sure, which `UNSEEN` forbids.
    """
    total, variance = step.step_time, 0.0
    spreads = _spreads(step)
    for name, seconds in step.exposed.items():
        variance += (seconds / total * spreads[name]) ** 2
    spread = max(UNSEEN, math.sqrt(variance))
    reach = math.exp(quantile(NOMINAL) * spread)
    return Interval(total / reach, total * reach, spread)


def _spreads(step: RlStep) -> Mapping[str, float]:
    known = step.trained.prediction.uncertainty
    of_training = known.spread if known is not None else SPREADS["rollout"]
    return {**SPREADS, "training": of_training, "logprobs": of_training}
