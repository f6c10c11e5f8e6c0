"""How fast a machine's host runs framework code: what its steps took over what their host operations cost elsewhere.

A host is slow for seconds at a time, since cores share what lies under them. A step that it decides says how slow it
was; one that the GPU decides says that it was no slower than that. Both count: with the first alone a host would look
slower than it is, because only slow moments make steps that it decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from prestep.sim.costs.spreads import quantile
from prestep.validation.fit.bootstrap import Estimate
from prestep.validation.fit.machine_steps import Step

HELD_OUT = 3  # every third case
#: Seconds of a step of `prestep.validation.measure.dispatch` on a host of factor 1, the mean over its cores: two
#: starts (H100, H200) whose tiny steps gave 2.07 and 1.73. Four further starts come out
#: -0.5, +6, +2.5 and -2 % off theirs.
DISPATCH_STEP = 3.25e-3
DISPATCH_SPREAD = 0.10  # within ten minutes of three starts, of the logarithm
#: Of the logarithm: below it steps of one case differ among themselves.
LEAST_SPREAD = 0.02

#: Times by which rows of experts must be likelier with the factor that was known before than with that of other steps.
LIKELIER = 2.0


@dataclass(frozen=True)
class Experts:
    """Models with experts keep the factor that the known cluster has: their rows are `likelier` with it, times."""

    factor: float
    other: float
    likelier: float
    rows: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What is left as it was, and why."""
        return (
            f"host_factor_experts {self.factor:.3g}: it stays as it was for models with experts, since "
            f"{', '.join(self.rows)} is {self.likelier:.1f} times likelier with it than with the {self.other:.3g} of "
            f"all other steps"
        )


@dataclass(frozen=True)
class Host:
    """`factor`: time of framework code here over that on the host it was fitted on; signed errors by row.

    Attributes
    ----------
    spread
        Standard deviation of the logarithm of a step's factor, from minute to minute and from rank to rank.
    experts
        What models with experts keep; None: the factor counts for them too.
    """

    factor: Estimate
    spread: float
    fitted: dict[str, float]
    held_out: dict[str, float]
    bounds: int = 0
    experts: Experts | None = None

    @property
    def summary(self) -> str:
        """The factor, and errors of both parts."""
        bounds = (
            f" and {self.bounds} that the GPU decides (no slower than ...)"
            if self.bounds
            else ""
        )
        line = (
            f"host_factor {self.factor}{bounds}, spread {self.spread:.1%}; "
            f"fitted: {_listed(self.fitted)}; held out: {_listed(self.held_out)}"
        )
        return "\n".join([line, *([self.experts.summary] if self.experts else [])])


def _listed(errors: Mapping[str, float]) -> str:
    """Errors by row."""
    return ", ".join(f"{name} {e:+.1%}" for name, e in errors.items()) or "no rows"


def fit(steps: Sequence[Step], known: float = 1.0) -> Host | None:
    """The host's factor from training steps; None where no step is decided by the host.

    Parameters
    ----------
    known
        The factor of the known cluster for models with experts.
    """
    witnesses = {step.row.name: step.factor for step in steps if step.host_bound}
    if not witnesses:
        return None
    bounds = [step.factor for step in steps if not step.host_bound]
    used = [name for at, name in enumerate(witnesses) if at % HELD_OUT != HELD_OUT - 1]
    trial, _ = middle([witnesses[name] for name in used], bounds)
    errors = {name: trial / factor - 1 for name, factor in witnesses.items()}
    value, spread = middle(list(witnesses.values()), bounds)
    wide = math.exp(quantile() * spread / math.sqrt(len(witnesses)))
    return Host(
        Estimate(value, value / wide, value * wide, len(witnesses)),
        spread,
        {name: errors[name] for name in used},
        {name: errors[name] for name in witnesses if name not in used},
        sum(bound < value * math.exp(2 * spread) for bound in bounds),
        _experts(steps, known),
    )


def _experts(steps: Sequence[Step], known: float) -> Experts | None:
    """Whether models with experts keep the known factor: held out of the fit, their rows are likelier with it."""
    own = [step for step in steps if step.experts]
    others = [step for step in steps if not step.experts]
    factors, bounds = _factors(others)
    if not own or not factors:
        return None
    value, spread = middle(factors, bounds)
    mine = _factors(own)
    gain = _likely(*mine, known, spread) - _likely(*mine, value, spread)
    if gain < math.log(LIKELIER):
        return None
    names = tuple(step.row.name for step in own)
    return Experts(known, value, math.exp(gain), names)


def _factors(steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """Factors of steps that the host decides, and upper bounds from the others."""
    factors = [step.factor for step in steps if step.host_bound]
    return factors, [step.factor for step in steps if not step.host_bound]


def _likely(
    factors: Sequence[float], bounds: Sequence[float], middle_: float, spread: float
) -> float:
    """Logarithm of the likelihood of a host's factor (log-normal) by steps that say or bound it."""
    at = math.log(middle_)
    likely = norm.logpdf(np.log(factors), at, spread).sum()
    return float(likely + norm.logcdf(np.log(bounds), at, spread).sum())


def of_dispatch(rows: Sequence[Mapping[str, Any]]) -> Host | None:
    """The factor by steps on the CPU, where no step of a GPU says it; None without such rows."""
    if not rows:
        return None
    value = float(np.mean([row["s"] for row in rows])) / DISPATCH_STEP
    wide = math.exp(quantile() * DISPATCH_SPREAD)
    interval = Estimate(value, value / wide, value * wide, len(rows))
    return Host(interval, DISPATCH_SPREAD, {}, {})


def middle(factors: Sequence[float], bounds: Sequence[float]) -> tuple[float, float]:
    """Middle and spread of a host's factor (log-normal, most likely) by steps that say or bound it."""
    seen = np.log(factors)
    start = float(seen.mean()), math.log(max(LEAST_SPREAD, float(seen.std())))

    def unlikely(x: np.ndarray) -> float:
        spread = max(LEAST_SPREAD, math.exp(x[1]))
        return -_likely(factors, bounds, math.exp(x[0]), spread)

    best = minimize(unlikely, start, method="Nelder-Mead").x
    few = math.sqrt(len(seen) / max(1, len(seen) - 1))  # as of a sample
    return math.exp(best[0]), max(LEAST_SPREAD, few * math.exp(best[1]))
