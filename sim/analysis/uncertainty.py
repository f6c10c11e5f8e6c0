"""How sure a step time is: an interval from the errors of the constants that its critical path rests on.

The error of a step is linearised over the critical path: a constant that is off by a share e makes the step longer by
e times the seconds that the path spends on it. Seconds of one constant are added before they are squared, since its
error is the same wherever it is used; errors of different constants are independent. Log-normal, so that a wide
interval never reaches zero. Nothing is sampled: the same run has the same interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sim.analysis.critical_path import HOST, CriticalPath, Segment
from sim.collectives.plan import Plan
from sim.costs.kinds import STREAM_PASSES
from sim.costs.spreads import NOMINAL, quantile, widths
from sim.graph.kernel import Kernel
from sim.graph.opgraph import KERNEL, Chain, Program
from sim.planning.numa import LOCAL
from sim.planning.planned import Planned
from sim.spec.sections import Scenario
from sim.storage.systems import load_system as storage_of

GUESS = "guess"
RUN = "run to run"  # the part that is the state of the machine
METHOD = "linearised over the critical path; errors of one constant count together"


class Constant(NamedTuple):
    """What may be off: a `family` of widths ("gemm", "bandwidth"), which one of it, and its evidence grade."""

    family: str
    name: str
    grade: str


@dataclass(frozen=True)
class Part:
    """Seconds of the critical path that rest on one constant, and its relative standard deviation.

    `octaves` is how far past the measured sizes it is used: 1 is twice the largest (0: not noteworthy).
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
    """

    low: float
    high: float
    spread: float
    guessed: float
    parts: tuple[Part, ...]
    nominal: float = NOMINAL

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for everything that is used past its measured sizes, the most time first."""
        far = sorted((p for p in self.parts if p.octaves > 0), key=lambda p: -p.seconds)
        step = math.sqrt(self.low * self.high) or 1.0
        return tuple(
            f"{p.constant}: up to {2**p.octaves:.3g} times the measured sizes, {p.seconds / step:.1%} of the step"
            for p in far
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "parts": [asdict(part) for part in self.parts],
            "method": METHOD,
        }


def uncertainty_of(
    planned: Planned, path: CriticalPath, computed: float, step: float
) -> Uncertainty:
    """The interval of a step of `step` seconds, of which the critical path `path` explains `computed`."""
    read = _Reader(planned)
    seconds: dict[Constant, float] = defaultdict(float)
    scale = computed / (path.length or 1.0)
    for segment in path.segments:
        for constant, share in read.shares(segment):
            seconds[constant] += share * segment.duration * scale
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


def with_readers(
    gpu: Uncertainty, scenario: Scenario, data: Mapping[str, Any] | None
) -> Uncertainty:
    """The interval of a step that takes as long as the slower of its GPU, whose interval is `gpu`, and its readers."""
    if data is None or not data["readers_time"]:
        return gpu
    readers = interval(_read(scenario, data), data["readers_time"])
    low, high = max(gpu.low, readers.low), max(gpu.high, readers.high)
    binding = readers if data["input_bound"] else gpu
    return replace(
        binding, low=low, high=high, spread=math.log(high / low) / (2 * quantile())
    )


def _read(scenario: Scenario, data: Mapping[str, Any]) -> dict[Constant, float]:
    """Seconds of reading by what they rest on; what [dataload] says itself is as sure as its author."""
    if data["bound_by"] != "storage":
        return {}
    system = storage_of(
        scenario.dataload.storage or "nvme", scenario.where, "dataload.storage"
    )
    grade = "datasheet" if system.evidence.get("iops") == "datasheet" else GUESS
    return {
        Constant("bandwidth", f"reads from {system.name}", grade): data["read_time"]
    }


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
    }


class _Reader:
    """Constants under a segment of the path; those of a kernel or a plan are found once."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.programs: dict[int, Program] = {p.rank: p for p in planned.graph.programs}
        self.kernels: dict[int, list[tuple[Constant, float]]] = {}
        self.past: dict[Constant, float] = {}
        facts = planned.fabric.cluster_facts
        said = (
            planned.scenario.cluster.host_factor is not None
            or facts.host_factor is not None
        )
        known = said and planned.scenario.cluster.numa == LOCAL
        self.host = Constant("host", "", "fitted" if known else "guess")
        # Hosts of one kind differ from start to start, those with neighbours the most: the cluster file says how far.
        own = planned.scenario.cluster.host_factor is not None
        spread = None if own else facts.host_spread
        self.speed = Constant("host", "speed of the host", "fitted")
        self.host_spread = spread or 0.0

    def shares(self, segment: Segment) -> Sequence[tuple[Constant, float]]:
        if segment.kind == HOST:
            return [(self.host, 1.0), (self.speed, 1.0)]
        if segment.index < 0:
            return [(Constant("pause", "", "measured"), 1.0)]
        program = self.programs[segment.rank]
        payload = int(program.payload[segment.index])
        if segment.kind == "communication" and program.kind[segment.index] == KERNEL:
            return list(self._exchanges(payload, segment))
        if segment.kind == "communication":
            return list(
                self._plan(
                    self.planned.plans[program.parts[payload][0]], segment.duration
                )
            )
        if payload not in self.kernels:
            kernel = self.planned.graph.kernels[payload]
            self.kernels[payload] = list(self._kernel(kernel))
        return self.kernels[payload]

    def _kernel(self, kernel: Kernel | Chain) -> Iterator[tuple[Constant, float]]:
        if not isinstance(kernel, Chain):
            yield self._constant(kernel), 1.0
            return
        chain, rest = self.planned.chains[kernel.graph], 1.0
        computing = 1.0 - chain.waiting
        for inner, share in chain.constituents():
            share /= computing
            rest -= share
            for constant, part in self._kernel(inner):
                yield constant, part * share
        yield Constant("pause", "", "measured"), max(0.0, rest)

    def _exchanges(
        self, payload: int, segment: Segment
    ) -> Iterator[tuple[Constant, float]]:
        """What layers wait for their own exchanges along an axis rests on all of these alike."""
        chain = self.planned.graph.kernels[payload]
        if not isinstance(chain, Chain):
            return
        cycle = self.planned.chains[chain.graph].cycle
        exchanges = () if cycle is None else cycle.exchanges
        plans = [e.plan for e in exchanges if e.comm.axis == segment.axis]
        for plan in plans:
            for constant, share in self._plan(plan, 0.0):
                yield constant, share / len(plans)

    def _constant(self, kernel: Kernel) -> Constant:
        gpu = self.planned.gpu
        if kernel.kind == "spin":
            return Constant("pause", "", "measured")
        family = family_of(kernel.kind) if gpu.like is None else "lent"
        octaves = gpu.past(kernel)
        beyond = ", past its table" if octaves else ""
        constant = Constant(
            family, f"{kernel.kind} {kernel.dtype}{beyond}", gpu.evidence(kernel)
        )
        if octaves:
            self.past[constant] = max(octaves, self.past.get(constant, 0.0))
        return constant

    def _plan(self, plan: Plan, time: float) -> Iterator[tuple[Constant, float]]:
        """Latency, then bytes over links; what takes longer than on an idle network is the latter."""
        grade = (
            plan.evidence
            if plan.evidence in ("fitted", "datasheet", "guess")
            else "fitted"
        )
        time = time or plan.duration(self.planned.fabric.links.bandwidth)
        share = min(1.0, plan.latency / time) if time > 0 else 1.0
        yield Constant("latency", f"latency {plan.algo} {plan.proto}", grade), share
        yield (
            Constant("bandwidth", f"bandwidth {plan.algo} {plan.proto}", grade),
            1.0 - share,
        )


def family_of(kind: str) -> str:
    """The family of widths of a kind of kernel."""
    if "gemm" in kind or kind == "bmm":
        return "gemm"
    if "attention" in kind:
        return "attention"
    return (
        "memory"
        if kind in STREAM_PASSES or kind.startswith(("foreach", "fused", "adamw"))
        else "other"
    )
