"""A scenario's step, planned and executed, for tests that look at both."""

from __future__ import annotations

from dataclasses import dataclass, field

from prestep.sim import predict
from prestep.sim.analysis import effects as times
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.report import report
from prestep.sim.costs import Gpu
from prestep.sim.engine import engine
from prestep.sim.engine.execution import Run
from prestep.sim.planning.planned import Planned
from prestep.sim.planning.planned import planned as plan_lowered
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import ModelSpec


@dataclass(frozen=True)
class Executed:
    """A planned step and its run."""

    planned: Planned
    run: Run
    scenario: Scenario = field(default_factory=Scenario)

    @property
    def model(self) -> ModelSpec:
        return self.planned.model

    @property
    def lowered(self) -> Lowered:
        return self.planned.lowered

    @property
    def fabric(self) -> Fabric:
        return self.planned.fabric

    @property
    def gpu(self) -> Gpu:
        return self.planned.gpu

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.planned.gpus


def executed(
    scenario: Scenario, steps: int | None = None, fabric: Fabric | None = None
) -> Executed:
    """The scenario's step on its cluster, as often as a prediction takes, or so many times."""
    return of(predict.plan(scenario, fabric), steps, scenario)


def of(
    planned: Planned, steps: int | None = None, scenario: Scenario | None = None
) -> Executed:
    """A planned step with its run."""
    run = predict.execute(planned) if steps is None else engine.execute(planned, steps)
    return Executed(planned, run, scenario or Scenario())


def of_lowered(done: Executed, lowered: Lowered) -> Executed:
    """The same job and machine with another record of its step."""
    step = plan_lowered(done.planned.job, done.planned.machine, done.model, lowered)
    return of(step, scenario=done.scenario)


def step_time(done: Executed) -> float:
    return times.step_time(done.planned, done.run)


def reported(done: Executed) -> Prediction:
    return report(done.planned, done.run)
