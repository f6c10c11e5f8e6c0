"""Laws of runs by fewer rounds: they are those in which every round is executed, in all that they say."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from prestep.sim import predict
from prestep.sim.collectives.plan import Plan
from prestep.sim.engine import engine
from prestep.sim.engine.execution import Run
from prestep.sim.engine.steady import rounds
from prestep.sim.errors import InputError
from prestep.sim.planning.jitter import jitter_of
from prestep.sim.planning.noise import noise_of
from prestep.sim.planning.planned import Planned
from prestep.sim.spec.load import parse_scenario
from prestep.sim.tools.catalog import names
from prestep.workloads.job.faults import Faults

MODEL = {
    "kind": "transformer",
    "hidden": 4096,
    "layers": 4,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 16384,
    "vocab": 8192,
}
STEPS = 3
REL = 1e-9
CLUSTER = {"name": "dgx-h100-superpod", "hosts": 4}


def planned(
    training: dict[str, Any],
    parallel: dict[str, Any],
    model: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **tables: dict[str, Any],
) -> Planned:
    """A step of a small transformer on some hosts."""
    one = {"seq_len": 1024, "micro_batch": 1, **training}
    gpus = prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp"))
    asked = {
        "cluster": {**CLUSTER, "gpus": gpus, **(cluster or {})},
        "model": model or MODEL,
        "training": one,
        "parallel": parallel,
        **tables,
    }
    return predict.plan(parse_scenario(asked, "steady.toml"))


def pipeline(stages: int, microbatches: int, **parallel: Any) -> Planned:
    """A pipeline of Megatron's, a layer or two a stage, of which the GPUs' work decides."""
    quick = {"host_factor": 0.1}
    training = {"framework": "megatron", "microbatches": microbatches}
    layout = {"pp": stages, "tp": 1, "dp": 1, **parallel}
    return planned(training, layout, MODEL | {"layers": 2 * stages}, quick)


def differences(one: Run, other: Run) -> list[str]:
    """What two runs of the same graph do not agree on."""
    found = [
        name
        for name in ("launch", "start", "end", "budget")
        for mine, its in zip(getattr(one, name), getattr(other, name), strict=True)
        if not np.allclose(mine, its, rtol=0, atol=REL * one.finished)
    ]
    for mine, its in zip(one.ready, other.ready, strict=True):
        if mine != pytest.approx(its, abs=REL * one.finished):
            found.append("ready")
    for waited, other_waited in zip(one.exposed, other.exposed, strict=True):
        if waited.keys() != other_waited.keys() or any(
            dict(waited[g]) != pytest.approx(dict(other_waited[g]), abs=REL)
            for g in waited
        ):
            found.append("exposed")
    for name, mine, its in (
        ("carried", one.bytes.carried, other.bytes.carried),
        ("everywhere", one.bytes.everywhere, other.bytes.everywhere),
        ("data", one.bytes.data, other.bytes.data),
        ("data everywhere", one.bytes.data_everywhere, other.bytes.data_everywhere),
        ("copies", one.bytes.copies, other.bytes.copies),
    ):
        if not np.allclose(mine, its, rtol=REL, atol=REL * mine.max(initial=1.0)):
            found.append(name)
    return found + _of_traffic(one, other)


def _of_traffic(one: Run, other: Run) -> list[str]:
    """The same of what moved when."""
    mine, its = one.traffic, other.traffic
    same = len(mine.time) == len(its.time) and (
        np.allclose(mine.time, its.time, rtol=0, atol=REL * one.finished)
        and (mine.activity == its.activity).all()
        and (mine.bound == its.bound).all()
        and np.allclose(mine.rate, its.rate, rtol=REL)
        and all(map(_same_bytes, mine.plans, its.plans))
        and mine.busy == its.busy
    )
    return [] if same else ["traffic"]


def _same_bytes(one: Plan, other: Plan) -> bool:
    """Whether two plans move as much over the same links; those of parts are made for every run, of what was left."""
    as_much = one.size == pytest.approx(other.size, rel=REL)
    return one.usage is other.usage and as_much and one.op == other.op


def both(step: Planned, steps: int = STEPS) -> tuple[Run, Run]:
    """A run by fewer rounds, where that can be, and the one of all."""
    return engine.execute(step, steps), engine.execute_all(step, steps)


@pytest.mark.parametrize(
    ("parallel", "share"),
    [
        ({}, 0.5),
        ({"tp": 2}, 0.5),
        ({"dp": 2, "data_parallel": "zero1"}, 0.5),
        ({"dp": 2, "data_parallel": "fsdp"}, 0.5),
    ],
    ids=str,
)
def test_a_long_pipeline_executes_a_part_of_its_rounds(
    parallel: dict[str, Any], share: float
) -> None:
    """64 microbatches on four stages take less than half of the events, and the run is the same."""
    fewer, every = both(pipeline(4, 64, **parallel))
    assert fewer.events < share * every.events
    assert differences(fewer, every) == []


def test_accumulated_gradients_are_rounds_too() -> None:
    """Without stages every microbatch is a round."""
    step = planned(
        {"framework": "pytorch-eager", "grad_accumulation": 32},
        {"dp": 2, "data_parallel": "fsdp"},
    )
    fewer, every = both(step)
    assert fewer.events < every.events and differences(fewer, every) == []


def test_noise_leaves_no_two_rounds_the_same() -> None:
    """A run with noise is executed as a whole."""
    step = pipeline(4, 64)
    noise = noise_of(jitter_of(Faults()), step.graph, step.durations, STEPS, (1,))
    assert (
        rounds.executed(replace(step, noise=noise), STEPS, engine.execute_all) is None
    )


def test_a_power_budget_that_runs_out_is_no_steady_state() -> None:
    """Rounds of the same length that draw on a budget are not put in again: it is spent some rounds later."""
    step = pipeline(2, 48)
    assert step.limit is not None
    power = replace(step.limit.power, budget=0.05)
    fewer, every = both(replace(step, limit=replace(step.limit, power=power)))
    assert differences(fewer, every) == []


@st.composite
def steps(draw: st.DrawFn) -> Planned:
    """Pipelines of all schedules that there are, sharded or not, with a slow rank, links and GPUs changed."""
    stages = draw(st.sampled_from([1, 2, 4]))
    schedule = draw(st.sampled_from(sorted(names("schedules"))))
    microbatches = draw(st.sampled_from([16, 24, 32]))
    dp = draw(st.sampled_from([1, 2, 8]))
    ways = ["ddp", "fsdp", "zero1"] if dp > 1 else ["none"]
    framework = draw(st.sampled_from(["megatron", "pytorch-eager", "pytorch-compiled"]))
    parallel: dict[str, Any] = {
        "pp": stages,
        "dp": dp,
        "tp": draw(st.sampled_from([1, 2])),
        "schedule": schedule if stages > 1 else "1f1b",
        "data_parallel": draw(st.sampled_from(ways)),
    }
    if schedule == "interleaved" and stages > 1:
        parallel["vpp"] = 2
    changed = draw(st.sampled_from(["nic.bandwidth", "nvlink.bandwidth", "gpu.clock"]))
    cluster = {"set": {changed: draw(st.sampled_from(["1x", "0.3x", "0.05x"]))}}
    faults = {"slow_rank": 0, "slow_factor": 1.3} if draw(st.booleans()) else {}
    model = MODEL | {
        "layers": stages * draw(st.sampled_from([2, 4])),
        "hidden": draw(st.sampled_from([512, 4096])),
    }
    key = "microbatches" if stages > 1 else "grad_accumulation"
    training = {"framework": framework, key: microbatches}
    return planned(training, parallel, model, cluster=cluster, faults=faults)


@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
    # To draw is to plan a step, and some layouts are refused.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_fewer_rounds_say_what_all_of_them_say(data: st.DataObject) -> None:
    """Whatever is predicted by fewer rounds is what the whole run says: times, waits, bytes and rates of every link."""
    try:
        step = data.draw(steps())
    except InputError:
        reject()  # a layout that is refused
    fewer, every = both(step)
    assert differences(fewer, every) == []


def test_no_step_is_slower_for_being_the_last() -> None:
    """Streams that have ended leave the memory to transfers: gradients are scattered as fast as in any other step."""
    layers = {"kind": "transformer", "hidden": 8192, "layers": 2, "heads": 16}
    step = planned(
        {"framework": "pytorch-eager"},
        {"dp": 4, "data_parallel": "fsdp"},
        {**layers, "ffn": 32768, "vocab": 4096},
    )
    run = engine.execute_all(step, 4)
    _, *lengths = np.diff([0.0, *(float(e.max()) for e in run.end[0])])
    assert lengths == pytest.approx([lengths[0]] * 3, rel=1e-9)
