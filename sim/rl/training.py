"""Training and log-probabilities: the framework's step on packed rollouts, and its forward passes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.analysis.prediction import Prediction
from sim.analysis.timeline import Timeline
from sim.predict import predict
from sim.rl.lengths import generated, packs
from sim.rl.pools import Pools, as_training
from sim.spec.sections import Scenario

FEWEST = 8
ROUND = 64  # tokens to which packs are padded (NeMo RL, sequence_length_round)


@dataclass(frozen=True)
class Batch:
    """How rollouts are packed for one optimizer step: `microbatches` of every replica, of `seq_len` tokens."""

    packs: int
    microbatches: int
    seq_len: int


@dataclass(frozen=True)
class Trained:
    """Times of training in one RL step, s.

    `step` is of one optimizer step, of which there are `steps`; `pass_` is one forward pass over all rollouts.
    """

    prediction: Prediction
    scenario: Scenario
    batch: Batch
    steps: int
    pass_: float

    @property
    def training(self) -> float:
        return self.steps * self.prediction.step_time


def trained(pools: Pools) -> Trained:
    """The training of a step, and a forward pass over its rollouts."""
    rl = pools.rl
    samples = rl.train_global_batch or rl.rollouts
    batch = batch_of(pools, samples, rl.train_pack)
    scenario = as_training(pools, batch.seq_len, batch.microbatches)
    prediction = predict(scenario)
    forward = batch_of(pools, rl.rollouts, rl.logprob_pack)
    made = prediction
    if forward.seq_len != batch.seq_len:
        # packs of another length of their own: the host takes as long for a longer one
        made = predict(as_training(pools, forward.seq_len, _enough(pools)))
    timeline = made.timeline
    assert timeline is not None  # a prediction of its own scenario has it
    pass_ = forward_time(timeline, forward.microbatches, scenario.parallel.pp)
    return Trained(prediction, scenario, batch, rl.rollouts // samples, pass_)


def _enough(pools: Pools) -> int:
    """Microbatches of the step that a forward pass is read off: whole rounds of a pipeline, not its first alone."""
    stages = pools.scenario.parallel.pp
    return stages * math.ceil(FEWEST / stages)


def batch_of(pools: Pools, samples: int, pack: int) -> Batch:
    """Packs of so many rollouts over the replicas.

    All stages of a pipeline exchange activations of one size, so there packs are padded to the longest
    (nemo_rl/models/megatron/data.py); without, they are as long as what is in them.
    """
    rl = pools.rl
    lengths = [rl.prompt_length + new for new in generated(rl, samples)]
    if not rl.packing:
        return _padded(pools, samples, pack, max(lengths))
    room = max(pack * rl.max_length, max(lengths))
    count = packs(lengths, room)
    microbatches = math.ceil(count / pools.replicas)
    tokens = room
    if pools.scenario.parallel.pp == 1:
        tokens = math.ceil(sum(lengths) / (microbatches * pools.replicas))
    return Batch(count, microbatches, _rounded(pools, tokens))


def _padded(pools: Pools, samples: int, rows: int, longest: int) -> Batch:
    """Microbatches of so many rollouts, each as long as the longest of all (input_ids are one tensor)."""
    count = math.ceil(samples / rows)
    microbatches = math.ceil(count / pools.replicas)
    return Batch(count, microbatches, _rounded(pools, rows * longest))


def _rounded(pools: Pools, tokens: int) -> int:
    """Tokens of a pack that all ranks of a layout can split."""
    p = pools.scenario.parallel
    unit = math.lcm(ROUND, 2 * p.cp * p.tp)
    return unit * math.ceil(tokens / unit)


def forward_time(timeline: Timeline, microbatches: int, stages: int) -> float:
    """Seconds of forward passes alone: they fill the pipeline once, then its slowest stage paces them.

    Where several pipelines of so many `stages` are simulated, filling one takes what it does in the mean.
    """
    times = _forward_by_rank(timeline)
    return sum(times) * stages / len(times) + (microbatches - 1) * max(times)


def _forward_by_rank(timeline: Timeline) -> list[float]:
    """Median seconds of a microbatch's forward pass on each simulated rank, in the last step."""
    last = timeline.of_step(int(timeline["step"].max()))
    mine = (last["phase"] == "forward") & (last["stream"] == "compute")
    rank, microbatch = last["rank"][mine], last["microbatch"][mine]
    start, end = last["start"][mine], last["end"][mine]
    times: dict[float, float] = {}
    for one in np.unique(rank):
        of_rank = rank == one
        spans = [
            end[at].max() - start[at].min()
            for number in np.unique(microbatch[of_rank & (microbatch >= 0)])
            if (at := of_rank & (microbatch == number)).any()
        ]
        times[float(one)] = float(np.median(spans))
    return list(times.values())
