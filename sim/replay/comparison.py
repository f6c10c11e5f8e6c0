"""A recorded run beside the prediction of the same program: where they differ, by share and by kernel family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prestep.sim.analysis.critical_path import family_of
from prestep.sim.analysis.step_times import median
from prestep.sim.extras import lazily
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.replay.answers import SHARES, breakdown, families
from prestep.sim.replay.machine import recorded_gpu
from prestep.sim.replay.outcome import Outcome
from prestep.sim.spec.overrides import GPU, placing
from prestep.sim.units import format_duration, percent
from prestep.workloads.models.model import is_program

if TYPE_CHECKING:
    from prestep.sim.analysis.prediction import Prediction

with lazily():  # a replay without `--compare` predicts nothing
    from prestep.sim import predict
    from prestep.sim.spec import load

COMMUNICATION, COMPILED = "communication", "compiled"
WAITS = ("bubble", "straggler")


@dataclass(frozen=True)
class Side:
    """A step, measured or predicted: seconds in all, by what the GPU does, and of kernels by family."""

    step_time: float
    shares: Mapping[str, float]
    families: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Both sides of a program's step; `cluster` is where the prediction runs."""

    measured: Side
    predicted: Side
    cluster: str

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.step_time / self.measured.step_time - 1.0


def compare(outcome: Outcome, path: Path, overrides: Sequence[str] = ()) -> Comparison:
    """A replay of a run as it was beside the prediction of its program; a capture runs on GPUs like the recorded ones.

    Raises
    ------
    InputError
        If the scenario cannot be read or predicted.
    """
    items = tuple(overrides)
    gpu = recorded_gpu(outcome.replay.job)
    if is_program(path) and gpu is not None and not placing(items):
        items = (f"{GPU}={gpu.name}", *items)
    result = predict.predict(load.load_scenario(path, items))
    return Comparison(_measured(outcome), _predicted(result), _cluster(result))


def _cluster(result: Prediction) -> str:
    return str(result.scenario["cluster"])


def _measured(outcome: Outcome) -> Side:
    last = outcome.steps[-1].step
    times = [step.on(outcome.clock)[0] for step in outcome.steps if step.step == last]
    shares, _ = breakdown(outcome)
    kernels = families(outcome)
    kernels.pop(COMMUNICATION, None)  # with waiting for others in it: no work of a GPU
    return Side(median([time for time in times if not isnan(time)]), shares, kernels)


def _predicted(result: Prediction) -> Side:
    parts = result.breakdown
    # A recorded kernel of NCCL waits for its peers, too.
    waits = sum(parts.get(name, 0.0) for name in WAITS)
    exposed = waits + sum(s for key, s in parts.items() if key.startswith("exposed_"))
    host = parts.get("host", 0.0)
    compute = parts.get("compute", 0.0)
    idle = sum(parts.values()) - compute - exposed - host
    shares = dict(zip(SHARES, (compute, exposed, host, idle), strict=True))
    return Side(result.step_time, shares, _families(result))


def _families(result: Prediction) -> dict[str, float]:
    """Seconds of kernels by family, mean over ranks."""
    details, total = result.details, dict[str, float]()
    ranks = int(str(result.scenario["gpus"]))
    if details is None:
        return total
    for use in details.kernels:
        kind = use.kernel.kind
        family = COMPILED if kind.startswith("fused_") else family_of(kind)
        total[family] = total.get(family, 0.0) + use.time
    return {family: time / ranks for family, time in total.items()}


def as_text(comparison: Comparison) -> str:
    """The page for people."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    one, other = comparison.measured, comparison.predicted
    head = f"predicted on {comparison.cluster}"
    yield f"{head:<30} {'measured':>12} {'predicted':>12} {'difference':>12}"
    yield _row("step time", one.step_time, other.step_time)
    yield from ("", "share of the last step")
    for name in SHARES:
        yield _row(f"  {name}", one.shares.get(name, 0.0), other.shares[name])
    yield from ("", "GPU time by kernel family")
    for name in _by_time(one.families, other.families):
        yield _row(
            f"  {name}", one.families.get(name, 0.0), other.families.get(name, 0.0)
        )
    yield _row("  all", sum(one.families.values()), sum(other.families.values()))


def _by_time(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """Families of both sides, the longest first."""
    longest = {
        name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {*one, *other}
    }
    return sorted(longest, key=lambda name: (-longest[name], name))


def _row(name: str, one: float, other: float) -> str:
    ratio = percent(other / one - 1.0, True) if one > 0 else ""
    return f"{name:<30} {format_duration(one):>12} {format_duration(other):>12} {ratio:>12}"


SCHEMA = schemas_beside(__file__)["schema"]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Seconds."""
    return SCHEMA.row(comparison)
