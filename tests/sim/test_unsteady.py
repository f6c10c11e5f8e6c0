"""Steps are simulated until they are steady; those that are not are told of."""

from __future__ import annotations

import tomllib

import pytest

from prestep.sim.analysis.step_times import by_rank, spread, step_times
from prestep.sim.spec.load import parse_scenario
from tests.executed import Executed, executed, of, reported, step_time

# Two groups of two stages send their gradients over the same leaf switches; one group has the slower GPU.
TURNS = """
[cluster]
name = "h200-leafspine-2x2"
gpus = 4
[model]
kind = "transformer"
hidden = 512
heads = 8
kv_heads = 2
ffn = 4096
vocab = 1000
layers = 8
[training]
framework = "pytorch-eager"
seq_len = 6144
micro_batch = 1
microbatches = 4
[parallel]
dp = 2
pp = 2
data_parallel = "zero1"
schedule = "v-half"
vpp = 2
[nccl]
min_ctas = 4
[faults]
slow_rank = 0
slow_factor = 1.2
"""
# Stages of compiled graphs whose hosts set the pace, each with a lead from the first step.
HOSTS = """
[cluster]
name = "a100-hdr800"
gpus = 8
[model]
kind = "transformer"
hidden = 256
layers = 8
heads = 8
kv_heads = 4
ffn = 4096
vocab = 32000
gated = true
[training]
framework = "pytorch-compiled"
seq_len = 1024
micro_batch = 1
microbatches = 8
optimizer = "sgd"
[parallel]
dp = 1
tp = 2
pp = 4
data_parallel = "fsdp"
schedule = "1f1b"
"""
# Four stages of unlike work whose hosts set the pace: the last stage is ahead for many steps.
PIPELINE = """
[cluster]
name = "dgx-a100"
[model]
kind = "transformer"
hidden = 256
layers = 4
heads = 8
kv_heads = 4
ffn = 1024
vocab = 1000
[training]
framework = "pytorch-eager"
seq_len = 512
micro_batch = 1
microbatches = 4
optimizer = "sgd"
[parallel]
dp = 2
pp = 4
data_parallel = "ddp"
schedule = "1f1b"
"""


#: The same without the leaf switches' second group: nobody takes turns.
ALONE = TURNS.replace("dp = 2", "dp = 1").replace("gpus = 4", "gpus = 2")


def _done(text: str) -> Executed:
    return executed(parse_scenario(tomllib.loads(text), "turns"))


def _warned(done: Executed) -> bool:
    warnings = reported(done).warnings
    return any("steps still differ" in warning for warning in warnings)


def test_ranks_fall_in_step_before_a_step_is_reported() -> None:
    """What is reported is the steady step: after many more steps it is the same, on every rank."""
    done = _done(TURNS)
    later = of(done.planned, 40)
    times = step_times(done.planned.graph, later.run).values()
    settled = {round(float(mine[-2]), 9) for mine in times}
    assert settled == {round(step_time(done), 9)}
    assert not _warned(done)


def test_a_run_that_ends_before_ranks_fall_in_step_is_told_of() -> None:
    """Where ranks' last steps differ, the mean of many may be another: a reader is told."""
    assert _warned(of(_done(TURNS).planned, 3))


def test_ranks_that_wait_for_each_other_are_steady() -> None:
    """Three steps are enough where no groups take turns."""
    done = _done(ALONE)
    assert done.run.steps == 3
    assert spread(by_rank(done.planned.graph, done.run)) < 1e-9
    assert not _warned(done)


@pytest.mark.parametrize("clock", ["0.7x", "1.2x"])
def test_a_clock_does_not_decide_what_the_host_bounds(clock: str) -> None:
    """Stages whose hosts set the pace take as long at any clock, once the lead of the first step is used up."""
    plain = _done(HOSTS)
    other = _done(HOSTS.replace("gpus = 8", f'gpus = 8\nset."gpu.clock" = "{clock}"'))
    assert step_time(other) == pytest.approx(step_time(plain), rel=1e-9)


@pytest.mark.parametrize("text", [TURNS, ALONE, PIPELINE])
@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_no_rank_takes_longer_than_the_step(text: str, steps: int) -> None:
    """However many steps are simulated: the step is the longest of the ranks', and its path is as long."""
    result = reported(of(_done(text).planned, steps))
    assert max(result.step_time_by_rank.values()) == result.step_time
    assert result.critical_path is not None
    assert result.critical_path.length == pytest.approx(result.step_time, rel=1e-12)
    assert sum(result.breakdown.values()) == pytest.approx(result.step_time)
