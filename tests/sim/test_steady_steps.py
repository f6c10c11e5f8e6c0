"""Laws of runs whose last step is not executed: they are those in which it is, or they are executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prestep.sim.engine import engine
from prestep.sim.engine.steady import steps as steady_steps
from prestep.sim.planning.jitter import jitter_of
from prestep.sim.planning.noise import noise_of
from prestep.sim.planning.planned import Planned
from prestep.workloads.job.faults import Faults
from tests.sim.test_steady_rounds import differences, pipeline, planned

STEPS = 3


def eager(model: dict[str, Any], **parallel: Any) -> Planned:
    """A step of PyTorch on GPUs that are faster, or slower, than its host."""
    return planned({"framework": "pytorch-eager"}, parallel, model)


def transformer(hidden: int) -> dict[str, Any]:
    return {
        "kind": "transformer",
        "hidden": hidden,
        "layers": 2,
        "heads": 16,
        "ffn": 4 * hidden,
        "vocab": 4096,
    }


LARGE, SMALL = transformer(8192), transformer(256)


def _stages_that_wait_for_hosts() -> Planned:
    training = {"framework": "pytorch-eager", "microbatches": 4}
    return planned(training, {"pp": 2}, SMALL)


def with_last(step: Planned) -> engine.Run | None:
    return steady_steps.with_last(step, engine.execute_all(step, STEPS - 1))


@pytest.mark.parametrize(
    "step",
    [
        lambda: replace(eager(LARGE), budget=0.0),  # it draws more than it gives back
        lambda: eager(LARGE, dp=2, data_parallel="ddp"),
        lambda: eager(LARGE, dp=4, data_parallel="fsdp"),
        lambda: eager(SMALL),
        lambda: pipeline(4, 8),
        lambda: pipeline(4, 8, schedule="zero-bubble"),
        lambda: pipeline(2, 4, tp=2, dp=2, data_parallel="ddp"),
    ],
    ids=[
        "one",
        "ddp",
        "fsdp",
        "waits for its host",
        "1f1b",
        "zero-bubble",
        "stages with replicas",
    ],
)
def test_the_last_step_is_the_one_that_would_be_executed(step: Any) -> None:
    """Times, launches, budgets, waits, bytes and the rates of every transfer."""
    made = step()
    assert steady_steps.repeats(made, STEPS)
    longer = with_last(made)
    assert longer is not None
    assert differences(longer, engine.execute_all(made, STEPS)) == []


def test_a_step_less_is_executed() -> None:
    step = pipeline(4, 8)
    fewer, every = engine.execute(step, STEPS), engine.execute_all(step, STEPS)
    assert fewer.events < 0.7 * every.events
    assert fewer.steps == every.steps == STEPS


def test_a_power_budget_that_fills_over_steps_is_no_steady_state() -> None:
    """The second step leaves more of it than the first one: the third one is faster, and executed."""
    step = eager(LARGE)
    assert step.power is not None
    # Products that draw so little give back in their pauses more than they take.
    frugal = replace(step.power, budget=100.0, product=1.1)
    filling = replace(step, power=frugal, budget=0.0)
    assert with_last(filling) is None
    fewer, every = engine.execute(filling, STEPS), engine.execute_all(filling, STEPS)
    assert differences(fewer, every) == []


def test_a_power_budget_that_falls_over_steps_is_no_steady_state() -> None:
    """The second step leaves less of it than the first one, and the third one may be slower: it is executed."""
    step = eager(LARGE)
    assert step.power is not None
    falling = replace(step, power=replace(step.power, budget=100.0), budget=100.0)
    assert with_last(falling) is None
    fewer, every = engine.execute(falling, STEPS), engine.execute_all(falling, STEPS)
    assert differences(fewer, every) == []


def test_no_step_is_slower_for_being_the_last() -> None:
    """Streams that have ended leave the memory to transfers: gradients are scattered as fast as in any other step."""
    run = engine.execute_all(eager(LARGE, dp=4, data_parallel="fsdp"), 4)
    _, *lengths = np.diff([0.0, *(float(e.max()) for e in run.end[0])])
    assert lengths == pytest.approx([lengths[0]] * 3, rel=1e-9)


def test_a_launch_that_comes_later_with_every_step_is_no_steady_state() -> None:
    """A host that is a little slower than its GPU falls behind from step to step, until nothing is launched ahead."""
    step = eager(LARGE)
    busy = float(step.durations[step.graph.programs[0].payload].sum())
    program = step.graph.programs[0]
    behind = replace(program, host=program.host * 1.2 * busy / program.host.sum())
    late = replace(step, graph=replace(step.graph, programs=(behind,)))
    fewer, every = engine.execute(late, STEPS), engine.execute_all(late, STEPS)
    assert differences(fewer, every) == []


def test_not_tried_where_it_cannot_be() -> None:
    """With noise, two steps, communication that runs on, and hosts that hold up several ranks, none is like the one before."""
    step = pipeline(4, 8)
    noise = noise_of(jitter_of(Faults()), step.graph, step.durations, STEPS, (1,))
    assert not steady_steps.repeats(replace(step, noise=noise), STEPS)
    assert not steady_steps.repeats(step, 2)
    gathers_last = eager(LARGE, dp=4, data_parallel="zero1")
    assert not steady_steps.repeats(gathers_last, STEPS)
    assert not steady_steps.repeats(_stages_that_wait_for_hosts(), STEPS)
