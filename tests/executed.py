"""A scenario's step, planned and executed, for tests that look at both."""

from __future__ import annotations

from dataclasses import dataclass

from sim import predict
from sim.analysis import step_time as times
from sim.analysis.prediction import Prediction
from sim.analysis.report import report
from sim.costs import Gpu
from sim.engine import engine
from sim.engine.execution import Run
from sim.planning.planned import Planned
from sim.spec.sections import Scenario
from topologies.fabric import Fabric
from workloads.lowered import Lowered
from workloads.models.model import ModelSpec


@dataclass(frozen=True)
class Executed:
    """A planned step and its run."""

    planned: Planned
    run: Run

    @property
    def scenario(self) -> Scenario:
        return self.planned.scenario

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
    planned = predict.plan(scenario, fabric)
    return of(planned, steps)


def of(planned: Planned, steps: int | None = None) -> Executed:
    """A planned step with its run."""
    return Executed(
        planned,
        predict.execute(planned) if steps is None else engine.execute(planned, steps),
    )


def step_time(done: Executed) -> float:
    return times.step_time(done.planned, done.run)


def reported(done: Executed) -> Prediction:
    return report(done.planned, done.run)
