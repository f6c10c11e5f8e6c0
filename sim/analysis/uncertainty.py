"""How sure a step time is: an interval from the errors of the constants that its critical path rests on.

The error of a step is linearised over the critical path: a constant that is off by a share e makes the step longer by
e times the seconds that the path spends on it. Seconds of one constant are added before they are squared, since its
error is the same wherever it is used; errors of different constants are independent. Log-normal, so that a wide
interval never reaches zero. Nothing is sampled: the same run has the same interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from prestep.sim.analysis.constants import SPEED, Constant, Grounds
from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.costs.spreads import NOMINAL, quantile, widths
from prestep.sim.planning.job import Job
from prestep.sim.planning.planned import Planned
from prestep.sim.schema import GRADES

GUESS = "guess"
RUN = "run to run"  # the part that is the state of the machine
ROUTING = "natural routing of tokens to experts"
#: Parts of an interval that have the whole step, or another part's seconds.
TWICE = (RUN, ROUTING, SPEED)
METHOD = "linearised over the critical path; errors of one constant count together"


#: Shares of a step below which what is extrapolated is told together, and not at all.
HARDLY, LEAST = 0.01, 5e-4


@dataclass(frozen=True)
class Part:
    """Seconds of the critical path that rest on one constant, and its relative standard deviation.

    Attributes
    ----------
    constant
        What is not known exactly.
    seconds
        Seconds of the step that rest on it.
    spread
        Its own standard deviation, of the logarithm.
    octaves
        How far past the measured sizes it is used: 1 is twice the largest (0: not noteworthy).
    """

    constant: str
    grade: str
    seconds: float
    spread: float
    octaves: float = 0.0

    @property
    def error(self) -> float:
        """Its standard deviation in seconds."""
        return self.seconds * self.spread


@dataclass(frozen=True)
class Uncertainty:
    """The interval of a step time.

    Attributes
    ----------
    low, high : float
        Seconds; the measured step lies between them in `nominal` of the cases.
    spread : float
        Standard deviation of the logarithm of the step time.
    guessed : float
        Share of the critical path that rests on guesses, 0 to 1.
    parts : tuple of Part
        What adds to it, the largest contribution first.
    nominal : float
        Probability of the interval.
    """

    low: float
    high: float
    spread: float
    guessed: float
    parts: tuple[Part, ...]
    nominal: float = NOMINAL

    def grades(self, step: float) -> dict[str, float]:
        """Shares of so long a step by the grade of the constants that its critical path rests on; best grade first."""
        shares: dict[str, float] = {}
        for part in self.parts:
            if part.constant not in TWICE and step:
                shares[part.grade] = shares.get(part.grade, 0.0) + part.seconds / step
        if self.guessed:
            shares[GUESS] = self.guessed
        order = dict.fromkeys((*GRADES, *shares))
        return {name: shares[name] for name in order if name in shares}

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for what is used past its measured sizes, the most time first; one for all that hardly counts."""
        far = sorted((p for p in self.parts if p.octaves > 0), key=lambda p: -p.seconds)
        step = math.sqrt(self.low * self.high) or 1.0
        little = [p for p in far if p.seconds < HARDLY * step]
        of = [(p.constant, p.octaves, p.seconds) for p in far if p not in little]
        if little:
            name = little[0].constant if len(little) == 1 else f"{len(little)} more"
            together = math.fsum(p.seconds for p in little)
            of.append((name, max(p.octaves for p in little), together))
        return tuple(
            f"{name}: up to {2**octaves:.3g} times the measured sizes, {seconds / step:.1%} of the step"
            for name, octaves, seconds in of
            if seconds >= LEAST * step
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "parts": [asdict(part) for part in self.parts],
            "method": METHOD,
        }


def uncertainty_of(planned: Planned, path: CriticalPath, step: float) -> Uncertainty:
    """The interval of a step of `step` seconds, of which the critical path `path` explains what it computes for."""
    read = Grounds(planned)
    seconds: dict[Constant, float] = defaultdict(float)
    for segment in path.segments:
        for constant, share in read.shares(segment):
            seconds[constant] += share * segment.duration
    return interval(seconds, step, read.past, {read.speed: read.host_spread})


def interval(
    seconds: Mapping[Constant, float],
    step: float,
    past: Mapping[Constant, float] | None = None,
    spreads: Mapping[Constant, float] = MappingProxyType({}),
) -> Uncertainty:
    """The interval of a step of which so many seconds rest on each constant, and the whole on the state of the GPUs.

    `past` has constants that are used past their measured sizes, and by how many octaves: every octave adds the
    constant's own spread once more (guess). `spreads` has those of constants that the machine's file says.
    """
    parts = _parts(seconds, step, past or {}, spreads)
    if not step:
        return Uncertainty(step, step, 0.0, 0.0, parts)
    spread = math.hypot(*(part.error for part in parts)) / step
    guessed = math.fsum(part.seconds for part in parts if part.grade == GUESS) / step
    factor = math.exp(quantile() * spread)
    return Uncertainty(step / factor, step * factor, spread, guessed, parts)


def _parts(
    seconds: Mapping[Constant, float],
    step: float,
    past: Mapping[Constant, float],
    spreads: Mapping[Constant, float],
) -> tuple[Part, ...]:
    """What adds to the width of a step, the largest contribution first."""
    known = widths()
    parts = [Part(RUN, "measured", step, known["run"]["measured"])]
    for constant, time in seconds.items():
        if time <= 0:
            continue
        family, name, grade = constant
        spread = spreads[constant] if constant in spreads else known[family][grade]
        if spread:
            octaves = past.get(constant, 0.0)
            wider = spread * (1.0 + octaves)
            parts.append(Part(name or family, grade, time, wider, octaves))
    return tuple(sorted(parts, key=_largest_first))


def _largest_first(part: Part) -> tuple[float, str, str]:
    return -part.error, part.constant, part.grade


#: Standard deviation of the logarithm of a step with natural routing over the one with balanced experts that is
#: simulated: 1.00, 1.12 and 1.56 (Megatron-Bridge's verification cards of August 2026, all that force no balance:
#: Qwen3 30B-A3B and gpt-oss 20B on H100, Nemotron 3 Super on GB200).
NATURAL = math.sqrt(
    (math.log(1.00) ** 2 + math.log(1.12) ** 2 + math.log(1.56) ** 2) / 3
)


def with_routing(interval: Uncertainty, job: Job, step: float) -> Uncertainty:
    """The interval of a step whose experts may be uneven, or otherwise uneven than was assumed for all routers."""
    part = Part(ROUTING, GUESS, step, NATURAL)
    if not job.routed_freely or not step:
        return interval
    longer = _longer(interval, step, part)
    if job.routed_freely == "balanced":
        return longer
    below = math.hypot(math.log(step / interval.low), quantile() * part.spread)
    above = math.log(longer.high / step)
    spread = (above + below) / 2 / quantile()
    return replace(longer, low=step * math.exp(-below), spread=spread)


def _longer(interval: Uncertainty, step: float, part: Part) -> Uncertainty:
    """An interval that a part makes wider above alone."""
    if not step:
        return interval
    above = math.hypot(math.log(interval.high / step), quantile() * part.spread)
    return replace(
        interval,
        high=step * math.exp(above),
        spread=(above + math.log(step / interval.low)) / 2 / quantile(),
        parts=tuple(sorted((*interval.parts, part), key=_largest_first)),
    )


def difference(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Interval of the difference of two step times, s, from two `Uncertainty.to_dict()`.

    A constant that both rest on has the same error in both: only the seconds by which they differ count.
    """
    seconds: dict[tuple[str, str, float], float] = defaultdict(float)
    for sign, table in ((-1.0, base), (1.0, changed)):
        for part in table["parts"]:
            seconds[part["constant"], part["grade"], part["spread"]] += (
                sign * part["seconds"]
            )
    spread = math.hypot(*(time * key[2] for key, time in seconds.items()))
    middle = sum(time for (name, *_), time in seconds.items() if name == RUN)
    half = quantile() * spread
    return {
        "nominal": NOMINAL,
        "low": middle - half,
        "high": middle + half,
        "spread": spread,
        "method": METHOD,
    }
