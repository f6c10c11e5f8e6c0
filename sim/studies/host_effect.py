"""How much the host decides of a step, and what a CUDA graph or compilation would save of that."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from prestep.sim.analysis.constants import SPEED
from prestep.sim.analysis.critical_path import HOST
from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.uncertainty import Part, Uncertainty
from prestep.sim.costs.spreads import quantile, widths
from prestep.sim.errors import InputError
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, with_request
from prestep.sim.record.expected_error import with_expected_error
from prestep.sim.spec.sections import Scenario

#: Factors of hosts that nobody measured: ten starts of measured machines had 1.0 to 2.3 (docs/models.md); one
#: that is faster than all of them is a guess.
UNSTATED = (0.75, 2.4)
NO_TIME = 1e-3  # factor of a host that takes none
LEAST = 0.01  # share of a step from which on a host is said to decide it
# A step that is simulated again and again: larger ones take seconds each time.
MOST_OPERATIONS, MOST_GPUS = 10_000, 1_024
GRAPH, COMPILED, EAGER = "cuda-graph", "pytorch-compiled", "pytorch-eager"


@dataclass(frozen=True)
class HostEffect:
    """What the host does to a step; times are seconds of a step.

    Attributes
    ----------
    factor, evidence
        Time of the host over that of the one on which its costs were fitted, and who says so.
    low, high
        Nine in ten such hosts have a factor between these.
    step_low, step_high
        With a host of these factors.
    without
        With a host that takes no time. Nearly always the shortest of all; kernels that begin earlier may meet transfers
        that slow them down, and then it is a little longer than the step.
    share
        What is gone then, of the step; 0 where nothing is.
    cuda_graph, compiled
        With the whole step as one CUDA graph, and with compiled blocks; None where that is not simulated.
    """

    factor: float
    evidence: str
    low: float
    high: float
    step_low: float
    step_high: float
    without: float
    share: float
    cuda_graph: float | None
    compiled: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def with_host(scenario: Scenario, planned: Planned, result: Prediction) -> Prediction:
    """The result with what its host does to it, where hosts of usual speed make a difference."""
    effect = effect_of(scenario, planned, result)
    if effect is None:
        return result
    interval = result.uncertainty
    wider = None if interval is None else widened(interval, effect, result.step_time)
    return replace(result, host=effect.to_dict(), uncertainty=wider)


def effect_of(
    scenario: Scenario, planned: Planned, result: Prediction
) -> HostEffect | None:
    """What the host does to a step; None where it does next to nothing, or the step is too large to simulate again."""
    evidence, low, high = _factors(planned)
    if _is_large(planned) or not _may_matter(result, evidence):
        return None
    at = _Again(scenario, planned)
    slow, step = at.factor(high), result.step_time
    without = at.factor(NO_TIME)
    share = max(0.0, 1 - without / step)
    if max(share, slow / step - 1) < LEAST:
        return None
    factor = planned.machine.host.factor
    graph, compiled = (at.framework(name) for name in (GRAPH, COMPILED))
    fast = at.factor(low)
    return HostEffect(
        factor, evidence, low, high, fast, slow, without, share, graph, compiled
    )


def _is_large(planned: Planned) -> bool:
    gpus = planned.lowered.layout.world
    return gpus > MOST_GPUS or planned.graph.operations > MOST_OPERATIONS


def _may_matter(result: Prediction, evidence: str) -> bool:
    """Whether the step waits for its host somewhere, or its host may be much slower than it is taken for."""
    path = result.critical_path
    waits = path is not None and any(s.kind == HOST for s in path.segments)
    return not result.delayed and (waits or evidence == "guess")


def _factors(planned: Planned) -> tuple[str, float, float]:
    """Who says the host's factor, and between which factors nine in ten such hosts lie."""
    host, spread = planned.machine.host, widths()["host"]["fitted"]
    if not host.source:
        return "guess", *UNSTATED
    if host.source == "cluster":
        facts = planned.fabric.cluster_facts
        spread = math.hypot(spread, facts.host_spread or 0.0)
    wide = math.exp(quantile() * spread)
    return host.source, host.factor / wide, host.factor * wide


@dataclass(frozen=True)
class _Again:
    """The same step with another host or framework."""

    scenario: Scenario
    planned: Planned

    def factor(self, factor: float) -> float:
        """Seconds with a host of this factor."""
        own = factor / self.planned.machine.host.socket
        cluster = replace(self.scenario.cluster, host_factor=own)
        return self._seconds(replace(self.scenario, cluster=cluster))

    def framework(self, name: str) -> float | None:
        """Seconds with a framework that starts the same kernels otherwise; None where it cannot."""
        scenario = self.scenario
        if scenario.training.framework != EAGER:
            return None
        training = replace(scenario.training, framework=name)
        try:
            return self._seconds(replace(scenario, training=training))
        except InputError:
            return None

    def _seconds(self, scenario: Scenario) -> float:
        again = plan(scenario, self.planned.fabric, self.planned.gpus)
        return step_time(again, execute(again))


def widened(interval: Uncertainty, effect: HostEffect, step: float) -> Uncertainty:
    """The interval with both ends of the host's speed simulated.

    What a slower host costs is no straight line: a step that its GPU bounds may be bound by a host of twice the factor.
    """
    others = [part for part in interval.parts if part.constant not in (HOST, SPEED)]
    rest = quantile() * math.hypot(*(part.error for part in others)) / step
    above = math.hypot(rest, max(0.0, math.log(effect.step_high / step)))
    below = math.hypot(rest, max(0.0, math.log(step / effect.step_low)))
    host = _part(effect, step)
    return replace(
        interval,
        low=step * math.exp(-below),
        high=step * math.exp(above),
        spread=(above + below) / 2 / quantile(),
        parts=tuple(sorted((*others, host), key=lambda part: -part.error)),
    )


def _part(effect: HostEffect, step: float) -> Part:
    """The host's part of the interval."""
    grade = "guess" if effect.evidence == "guess" else "fitted"
    name = HOST if effect.evidence == "scenario" else SPEED
    width = max(0.0, math.log(effect.step_high / effect.step_low))
    return Part(name, grade, step, width / 2 / quantile())


def completed(scenario: Scenario, planned: Planned, result: Prediction) -> Prediction:
    """The prediction with what `prestep run` says beside the step: the host's part, and the expected error."""
    result = with_host(scenario, planned, result)
    return with_request(scenario, with_expected_error(scenario, planned, result))
