"""What a replay gives: its run, and its steps beside the measured ones."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prestep.sim.analysis.step_times import median
from prestep.sim.engine.engine import Run
from prestep.sim.errors import InputError, Mistake
from prestep.topologies.fabric import Fabric
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.replay import Replay
from prestep.workloads.traces.work import MARK

Mode = Literal["recorded", "simulated"]


@dataclass(frozen=True)
class StepTime:
    """One step of one rank, in seconds: on the host's clock (its annotation), and on the GPU's."""

    rank: int
    step: str
    measured_host: float
    simulated_host: float
    measured_gpu: float
    simulated_gpu: float

    def on(self, clock: str) -> tuple[float, float]:
        """(measured, simulated) on a clock."""
        return (
            (self.measured_gpu, self.simulated_gpu)
            if clock == "gpu"
            else (self.measured_host, self.simulated_host)
        )


@dataclass(frozen=True)
class Outcome:
    """What a replay gives.

    `clock` says which of a step's two lengths is its time: "gpu" where the GPU runs behind its host. `dropped` counts
    the events of the traces that have no part in the replay, with the reason.
    """

    replay: Replay
    run: Run
    mode: Mode
    cluster: str
    steps: tuple[StepTime, ...]
    clock: str
    changes: tuple[str, ...] = ()
    notes: dict[str, int] = field(default_factory=dict)
    dropped: tuple[dict[str, Any], ...] = ()
    fabric: Fabric | None = None
    free: tuple[dict[str, Any], ...] = ()

    @property
    def step_time(self) -> float:
        """Simulated seconds of the last step, median over ranks."""
        last = self.steps[-1].step
        return median(
            step.on(self.clock)[1] for step in self.steps if step.step == last
        )

    @property
    def measured_step(self) -> float:
        """Recorded seconds of the last step, median over the ranks that recorded it; nan where none did."""
        last = self.steps[-1].step
        times = [step.on(self.clock)[0] for step in self.steps if step.step == last]
        recorded = [time for time in times if time > 0]
        return median(recorded) if recorded else math.nan

    @property
    def worst(self) -> float:
        """Largest error of a step, relative."""
        return max(
            (
                abs(s / m - 1.0)
                for m, s in (step.on(self.clock) for step in self.steps)
                if m > 0
            ),
            default=0.0,
        )


def of_steps(outcome: Outcome, wanted: str) -> Outcome:
    """The outcome with some of its steps; answers are about the last of them.

    Raises
    ------
    InputError
        For steps that were not recorded.
    """
    known = list(dict.fromkeys(step.step for step in outcome.steps))
    kept, mistakes = set[str](), list[Mistake]()
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        low, dash, high = part.partition("-")
        ranged = low.isdecimal() and (high.isdecimal() or not dash)
        numbers = range(int(low), int(high or low) + 1) if ranged else range(0)
        found = {name for name in known if name == part or _number_of(name) in numbers}
        if not found:
            mistakes.append(
                Mistake(
                    "--steps",
                    part,
                    "no such step",
                    ", ".join(known),
                    "a number, 2-4, or a name",
                )
            )
        kept |= found
    InputError.check(mistakes)
    return (
        replace(outcome, steps=tuple(s for s in outcome.steps if s.step in kept))
        if wanted
        else outcome
    )


def _number_of(name: str) -> int:
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else -1


def last_step(outcome: Outcome, nodes: Sequence[Node]) -> int:
    """Number, among a rank's own steps, of the last step that is reported."""
    name = f"end {outcome.steps[-1].step}"
    return next(
        node.op.step for node in nodes if node.kind == MARK and node.op.name == name
    )
