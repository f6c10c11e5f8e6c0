"""Steps that are not steady when the simulation ends are told of."""

from __future__ import annotations

import tomllib

from sim.analysis import unsteady
from sim.spec.load import parse_scenario
from tests.executed import Executed, executed, reported

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
seq_len = 8192
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


def _warned(done: Executed) -> bool:
    warnings = reported(done).warnings
    return any("steps still differ" in warning for warning in warnings)


def test_groups_that_take_turns_on_links_are_told_of() -> None:
    """Where ranks' last steps differ, the mean of many is another: a reader is told."""
    done = executed(parse_scenario(tomllib.loads(TURNS), "turns"))
    assert unsteady.spread(done.planned.graph, done.run) > unsteady.UNLIKE
    assert _warned(done)


def test_ranks_that_wait_for_each_other_are_steady() -> None:
    alone = TURNS.replace("dp = 2", "dp = 1").replace("gpus = 4", "gpus = 2")
    done = executed(parse_scenario(tomllib.loads(alone), "alone"))
    assert unsteady.spread(done.planned.graph, done.run) < 1e-9
    assert not _warned(done)
