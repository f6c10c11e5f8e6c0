"""Training and log-probabilities: the framework's step on packed rollouts, and its forward passes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.graph.opgraph import SYNC, OpGraph
from prestep.sim.planning.planned import LAUNCH_LATENCY
from prestep.sim.predict import execute, plan, reported
from prestep.sim.rl.lengths import generated, packs
from prestep.sim.rl.pools import Pools, as_training
from prestep.sim.spec.sections import Scenario

FEWEST = 8
ROUNDING = 1e-3
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
    planned = plan(scenario)
    prediction = reported(planned, execute(planned))
    forward = batch_of(pools, rl.rollouts, rl.logprob_pack)
    made = prediction
    if forward.seq_len != batch.seq_len:
        # packs of another length of their own: the host takes as long for a longer one
        planned = plan(as_training(pools, forward.seq_len, _enough(pools)))
        made = reported(planned, execute(planned))
    timeline = made.timeline
    assert timeline is not None  # a prediction of its own scenario has it
    times = _forward_by_rank(timeline, planned.graph)
    pass_ = forward_time(times, forward.microbatches, scenario.parallel.pp)
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


def forward_time(times: Sequence[float], microbatches: int, stages: int) -> float:
    """Seconds of forward passes alone: they fill the pipeline once, then its slowest stage paces them.

    Where several pipelines of so many `stages` are simulated, filling one takes what it does in the mean. `times`: of
    one microbatch on every simulated rank.
    """
    return sum(times) * stages / len(times) + (microbatches - 1) * max(times)


def _forward_by_rank(timeline: Timeline, graph: OpGraph) -> list[float]:
    """Seconds of a microbatch's forward pass on each simulated rank, in the last step.

    In training the host may be ahead, after a backward pass that takes the GPU longer than its host. Where passes
    follow each other it has no such lead: a pass takes what the GPU or the host takes, whichever is longer.
    """
    last = timeline.of_step(int(timeline["step"].max()))
    mine = (last["phase"] == "forward") & (last["stream"] == "compute")
    times = []
    for program in graph.programs:
        of_rank = mine & (last["rank"] == program.rank) & (last["microbatch"] >= 0)
        ops = program.phase == graph.phases.index("forward")
        # A host that waits within a pass launches late in every one: what waits for it is no lack of a lead.
        seconds = _span if (program.kind[ops] == SYNC).any() else _without_launches
        spans = [
            seconds(last, of_rank & (last["microbatch"] == number))
            for number in np.unique(last["microbatch"][of_rank])
        ]
        ops &= program.microbatch >= 0
        hosts = np.bincount(program.microbatch[ops], program.host[ops])
        if spans:
            times.append(float(max(np.median(spans), np.median(hosts[hosts > 0]))))
    return times


def _span(timeline: Timeline, at: np.ndarray) -> float:
    """Seconds from the begin of the first of some spans to the end of the last."""
    return float(timeline["end"][at].max() - timeline["start"][at].min())


def _without_launches(timeline: Timeline, at: np.ndarray) -> float:
    """The same without pauses that end with a launch."""
    start, end, launch = (timeline[name][at] for name in ("start", "end", "launch"))
    pauses = np.maximum(0.0, start[1:] - np.maximum.accumulate(end)[:-1])
    launched = start[1:] - launch[1:] <= LAUNCH_LATENCY * (1 + ROUNDING)
    return _span(timeline, at) - float(pauses[launched].sum())
