"""The interval of a what-if's difference: both steps simulated again while the same constants are off by the same.

What is not known of a machine is the same before and after a change, so every constant is off by one amount in both
steps. A straight line from where the steps are does not do: the critical path moves to other constants as one of them
changes. A link that is full in both steps makes twice the bandwidth worth more if it is slower than we think, and
nothing if it is so fast that computation hides it.

Of all ways of being off that are as likely as `quantile()` standard deviations of one constant, these are tried: each
of the constants that matter most alone, up and down, and all of them together in the two directions that these trials
say raise and lower the difference most. The interval reaches from the smallest to the largest difference that was
found. Where the steps are straight in their constants, it is the interval that linearisation gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from prestep.sim.analysis.constants import Grounds, label
from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.uncertainty import RUN, Part, difference
from prestep.sim.collectives.plan import Plan
from prestep.sim.costs.spreads import NOMINAL, quantile
from prestep.sim.graph.opgraph import OpGraph
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute

METHOD = "both steps simulated with the same constants off by the same"
#: Steps that are simulated 16 times within a few seconds; the difference of larger ones is linearised.
MOST_OPERATIONS = 10_000
MOST_ALONE = 3  # constants that are tried by themselves
LEAST = 0.05  # of the error of the largest: less is not tried by itself

Key = tuple[str, str]  # a constant's name and grade, as parts of an interval have them
Offsets = Mapping[Key, float]  # standard deviations


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two steps: as it is planned, and what it is predicted to take."""

    planned: Planned
    result: Prediction

    @cached_property
    def parts(self) -> dict[Key, Part]:
        """What its interval is made of."""
        sure = self.result.uncertainty
        return {(p.constant, p.grade): p for p in sure.parts} if sure else {}

    @cached_property
    def grounds(self) -> Grounds:
        return Grounds(self.planned)

    @property
    def is_small(self) -> bool:
        """Whether it can be simulated again and again."""
        return self.planned.graph.operations <= MOST_OPERATIONS

    def seconds(self, factors: Mapping[Key, float]) -> float:
        """The step while what rests on a constant takes so many times as long."""
        off = shifted(self.planned, self.grounds, factors)
        return step_time(off, execute(off)) * factors.get((RUN, "measured"), 1.0)


def interval_of(base: Side, changed: Side, again: bool) -> dict[str, Any] | None:
    """Interval of the difference of two steps, s; None where a step has none.

    Linearised (`prestep.sim.analysis.uncertainty.difference`) where steps are not to be simulated again, or a step is
    too large for that or waits for data.
    """
    one, other = base.result.uncertainty, changed.result.uncertainty
    if one is None or other is None:
        return None
    sides = (base, changed)
    steady = all(side.is_small and not side.result.delayed for side in sides)
    if not (again and steady):
        return difference(one.to_dict(), other.to_dict())
    tried = _Pair(base, changed).tried()
    low, high = min(tried), max(tried)
    spread = (high - low) / 2 / quantile()
    return {
        "nominal": NOMINAL,
        "low": low,
        "high": high,
        "spread": spread,
        "method": METHOD,
    }


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two steps, and what happens to their difference (s, changed less base) as constants are off."""

    base: Side
    changed: Side

    def tried(self) -> list[float]:
        """The difference as it is, and at every offset that is tried."""
        far = quantile()
        ends = {
            key: {z: self.difference({key: z}) for z in (-far, far)}
            for key in self._leading()
        }
        plain = self.changed.result.step_time - self.base.result.step_time
        both = [self.difference(self._direction(ends, plain, way)) for way in (1, -1)]
        return [plain, *(d for end in ends.values() for d in end.values()), *both]

    def difference(self, offsets: Offsets) -> float:
        factors = {key: math.exp(z * self._spread(key)) for key, z in offsets.items()}
        return self.changed.seconds(factors) - self.base.seconds(factors)

    def _direction(
        self, ends: Mapping[Key, Mapping[float, float]], plain: float, way: int
    ) -> Offsets:
        """How far each constant is off where the difference is largest (`way` 1) or smallest (-1).

        Each by its share in that: as found by itself, or linearised.
        """
        pull = {
            key: way * quantile() * self._slope(key)
            for key in self._keys
            if key not in ends
        }
        for key, found in ends.items():
            z = max(found, key=lambda z: way * found[z])
            pull[key] = math.copysign(max(0.0, way * (found[z] - plain)), z)
        length = math.hypot(*pull.values()) or 1.0
        return {key: quantile() * share / length for key, share in pull.items()}

    def _leading(self) -> Sequence[Key]:
        """The constants with the largest errors in either step."""
        keys = [key for key in self._keys if key[0] != RUN]
        ranked = sorted(keys, key=lambda key: (-self._error(key), key))
        return [
            key
            for key in ranked[:MOST_ALONE]
            if self._error(key) >= LEAST * self._error(ranked[0])
        ]

    @cached_property
    def _keys(self) -> Sequence[Key]:
        return sorted({**self.base.parts, **self.changed.parts})

    def _of(self, key: Key) -> list[Part]:
        sides = (self.base, self.changed)
        return [side.parts[key] for side in sides if key in side.parts]

    def _spread(self, key: Key) -> float:
        return max(part.spread for part in self._of(key))

    def _error(self, key: Key) -> float:
        return max(part.error for part in self._of(key))

    def _slope(self, key: Key) -> float:
        """Seconds by which the difference grows with a standard deviation, along the critical paths as they are."""
        before, after = (s.parts.get(key) for s in (self.base, self.changed))
        return (after.error if after else 0.0) - (before.error if before else 0.0)


def shifted(
    planned: Planned, grounds: Grounds, factors: Mapping[Key, float]
) -> Planned:
    """The step on a machine where what rests on a constant takes so many times as long; others take what they took."""
    pause = factors.get(("pause", "measured"), 1.0)
    return replace(
        planned,
        graph=_launched(planned.graph, grounds, factors),
        durations=planned.durations * _of_kernels(planned, grounds, factors),
        plans=_of_plans(planned, grounds, factors),
        kernel_gap=planned.kernel_gap * pause,
        launch_latency=planned.launch_latency * pause,
    )


def _of_kernels(
    planned: Planned, grounds: Grounds, factors: Mapping[Key, float]
) -> np.ndarray:
    """The factor on every kernel of the graph."""
    return np.array(
        [
            1.0
            + math.fsum(
                share * (factors.get(label(constant), 1.0) - 1.0)
                for constant, share in grounds.of_kernel(at)
            )
            for at in range(len(planned.graph.kernels))
        ]
    )


def _of_plans(
    planned: Planned, grounds: Grounds, factors: Mapping[Key, float]
) -> tuple[Plan, ...]:
    """Every communication with its latency and the time of its bytes changed; those that were one plan remain one."""
    made = {id(plan): plan for plan in planned.plans}
    for key, plan in made.items():
        latency, bandwidth = (
            factors.get(label(constant), 1.0) for constant in grounds.of_plan(plan)
        )
        made[key] = replace(
            plan,
            latency=plan.latency * latency,
            usage=plan.usage * bandwidth,
            rate_cap=plan.rate_cap / bandwidth,
        )
    return tuple(made[id(plan)] for plan in planned.plans)


def _launched(
    graph: OpGraph, grounds: Grounds, factors: Mapping[Key, float]
) -> OpGraph:
    """The graph with the time of its hosts changed."""
    host = math.prod(factors.get(label(c), 1.0) for c in grounds.of_host)
    if host == 1.0:
        return graph
    programs = tuple(replace(p, host=p.host * host) for p in graph.programs)
    return replace(graph, programs=programs)
