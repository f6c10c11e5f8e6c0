"""A step of reinforcement learning, from its phases.

on-policy   refit, rollout, log-probabilities and training one after the other on all GPUs
k off       rollouts of later steps on GPUs of their own, beside log-probabilities and training; the refit stops both
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from prestep.sim.analysis.step_times import check_duration
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.rl.decode import Engine
from prestep.sim.rl.pools import Pools, pools_of
from prestep.sim.rl.rollout import Rollout, rollout_of
from prestep.sim.rl.training import Trained, trained
from prestep.sim.spec.sections import Scenario
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec

WEIGHT = 2.0  # bytes: trainers send 16 bits, engines make fp8 of them


@dataclass(frozen=True)
class Refit:
    """Seconds of a refit by what they are for, and bytes of all weights.

    `gather` and `broadcast` are on the links, `tensors` is the host's, `copies` those of phases that change.
    """

    gather: float
    broadcast: float
    tensors: float
    copies: float
    bytes: float
    count: int

    @property
    def seconds(self) -> float:
        return self.gather + self.broadcast + self.tensors + self.copies


def refit_of(pools: Pools, engine: Engine, trained: Trained) -> Refit:
    """The refit of one step."""
    size, count = total_parameters(pools.model) * WEIGHT, tensors_of(pools.model)
    copies = _copies(pools, engine, trained) if pools.colocated else 0.0
    broadcast = 0.0 if pools.colocated else _broadcast(pools, size)
    host = count * pools.constants.tensor_host
    return Refit(_gather(pools, size), broadcast, host, copies, size, count)


def tensors_of(m: ModelSpec) -> int:
    """Tensors of a model's checkpoint: each projection of each expert is one."""
    experts = sum(map(m.has_experts, range(m.layers)))
    of_ffn = 3 if m.gated else 2
    attention = 7 if m.latent else 4
    norms = 2 + (2 if m.qk_norm or m.latent else 0)
    routed = experts * (of_ffn * (m.experts + min(1, m.shared_experts)) + 1)
    dense = (m.layers - experts) * of_ffn
    return m.layers * (attention + norms) + routed + dense + 3


def _gather(pools: Pools, size: float) -> float:
    """Whole tensors on every trainer: one group that holds the model once, all others beside it at the same time."""
    p = pools.scenario.parallel
    inner = max(p.tp * p.cp, p.ep)
    within, fabric, nccl = pools.training[:inner], pools.fabric, pools.scenario.nccl
    bandwidth, total = fabric.links.bandwidth, 0.0
    if p.pp > 1:
        # a stage's neighbours in the pipeline are so many GPUs further; each sends its own part alone
        apart = len(pools.training) // p.pp
        line = pools.training[::apart]
        plan = plan_collective("broadcast", size / inner, line, fabric, nccl)
        total += plan.duration(bandwidth)
    if inner > 1:
        plan = plan_collective("all_gather", size, within, fabric, nccl)
        total += plan.duration(bandwidth)
    return total


def _broadcast(pools: Pools, size: float) -> float:
    """From the first trainer to all that generate."""
    receivers = [gpu for engine in pools.engines for gpu in engine]
    ranks = [*pools.training, *receivers]
    plan = plan_collective("broadcast", size, ranks, pools.fabric, pools.scenario.nccl)
    return plan.duration(pools.fabric.links.bandwidth)


def _copies(pools: Pools, engine: Engine, trained: Trained) -> float:
    """Optimizer states, weights of training and of the engine: each down to memory once a step, and up again."""
    fullest = max(
        trained.prediction.peak_memory.values(),
        key=lambda memory: memory.optimizer + memory.parameters,
    )
    moved = 2 * (fullest.optimizer + fullest.parameters + engine.weights)
    if pools.rl.with_reference:
        moved += 2 * fullest.parameters  # policy and reference change places, twice
    return moved / pools.copy_bandwidth


GENERATION = ("rollout", "environment")
LEARNING = ("logprobs", "training", "driver")


@dataclass(frozen=True)
class RlStep:
    """A predicted step of reinforcement learning, s."""

    pools: Pools
    engine: Engine
    rollout: Rollout
    trained: Trained
    refit: Refit

    @property
    def passes(self) -> int:
        """Policies whose log-probabilities are computed."""
        return 2 if self.pools.rl.with_reference else 1

    @cached_property
    def phases(self) -> Mapping[str, float]:
        """Seconds of every phase, whether or not another hides it."""
        return {
            "rollout": self.rollout.seconds,
            "environment": self.pools.rl.environment_time,
            "logprobs": self.passes * self.trained.pass_,
            "training": self.trained.training,
            "refit": self.refit.seconds,
            "driver": self.pools.constants.step_overhead,
        }

    @property
    def generating(self) -> float:
        """Seconds of a step that the GPUs that generate are busy with rollouts."""
        return sum(self.phases[name] for name in GENERATION)

    @property
    def learning(self) -> float:
        """Seconds of log-probabilities and training, with the driver's work between them."""
        return sum(self.phases[name] for name in LEARNING)

    @property
    def step_time(self) -> float:
        if self.pools.colocated:
            return sum(self.phases.values())
        return max(self.generating, self.learning) + self.refit.seconds

    @property
    def exposed(self) -> Mapping[str, float]:
        """Seconds of the phases that the step waits for; they sum to its time."""
        if self.pools.colocated:
            return self.phases
        generates = self.generating >= self.learning
        names = GENERATION if generates else LEARNING
        return {name: self.phases[name] for name in (*names, "refit")}

    @property
    def idle(self) -> Mapping[str, float]:
        """Seconds that a pool waits for the other."""
        if self.pools.colocated:
            return {"generation": 0.0, "training": 0.0}
        longer = max(self.generating, self.learning)
        return {
            "generation": longer - self.generating,
            "training": longer - self.learning,
        }

    @property
    def tokens(self) -> float:
        """Tokens of all rollouts that are trained on, prompts included."""
        return float(self.pools.rl.rollouts * self.pools.rl.mean_length)

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens / self.step_time / self.pools.gpus

    @property
    def bound(self) -> str:
        """What the step waits for most."""
        if self.pools.colocated:
            return max(self.phases, key=self.phases.__getitem__)
        return "rollout" if self.generating >= self.learning else "training"


def predict(scenario: Scenario) -> RlStep:
    """The RL step of a scenario.

    Raises
    ------
    InputError
        If pools, lengths, or the training step do not fit the cluster and the model.
    """
    pools = pools_of(scenario)
    rollout_of(Engine(pools, pools.engines[0]))  # what does not fit is told first
    step = step_of(pools, trained(pools))
    check_duration(step.step_time, scenario.where, "model, rl, training", "a step")
    return step


def step_of(pools: Pools, learned: Trained) -> RlStep:
    """The RL step of pools whose training is known."""
    engine = Engine(pools, pools.engines[0])
    refit = refit_of(pools, engine, learned)
    return RlStep(pools, engine, rollout_of(engine), learned, refit)
