"""The section [evaluation]: training stands still for a held-out set once in some steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prestep.sim.analysis.critical_path import IO, CriticalPath, Segment
from prestep.sim.analysis.uncertainty import Uncertainty
from prestep.sim.engine.execution import Run
from prestep.sim.errors import Mistake
from prestep.sim.outputs import words
from prestep.sim.planning.planned import Planned
from prestep.sim.strict import key
from prestep.sim.units import format_duration

TITLE = "Evaluation"
SCHEMA = words.table(
    "of [evaluation]",
    waits=words.number("s that a step waits on average"),
    share=words.number("of the step, 0 to 1"),
)


@dataclass(frozen=True)
class Evaluation:
    """Evaluating the model during training."""

    every: int = key(100, "steps between evaluations", low=1)
    time: float | None = key(None, "of one of them", unit="duration", above=0)


def mistakes_of(asked: Evaluation, where: str) -> list[Mistake]:
    """An evaluation takes some time."""
    if asked.time is not None:
        return []
    return [Mistake(where, "evaluation.time", "nothing", 'a duration such as "20 s"')]


@dataclass(frozen=True)
class Waiting:
    """What a step waits for on average: a delay that is as sure as the scenario's author."""

    computed: float
    waits: float

    @property
    def table(self) -> Mapping[str, Any]:
        return {"waits": self.waits, "share": self.waits / self.step_time}

    @property
    def step_time(self) -> float:
        return self.computed + self.waits

    @property
    def gpu_time(self) -> float:
        return self.computed

    def path(self, path: CriticalPath) -> CriticalPath:
        rank, end = path.segments[-1].rank, path.end + self.waits
        waiting = Segment(rank, IO, "evaluation", path.end, end, "evaluation")
        return replace(path, segments=(*path.segments, waiting), end=end)

    def interval(self, gpu: Uncertainty) -> Uncertainty:
        return replace(gpu, low=gpu.low + self.waits, high=gpu.high + self.waits)


def delay(planned: Planned, run: Run, asked: Evaluation, computed: float) -> Waiting:
    """Every step's part of an evaluation."""
    return Waiting(computed, (asked.time or 0.0) / asked.every)


def rows(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the page of `prestep run` shows."""
    return [("a step waits", format_duration(table["waits"]))]
