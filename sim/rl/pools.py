"""Which GPUs generate and which train, and the training step as a scenario of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from prestep.sim.costs import Gpu
from prestep.sim.costs.measured import gpu_of
from prestep.sim.errors import InputError, Mistake
from prestep.sim.lowering import host_speed
from prestep.sim.planning.fleet import Fleet, fleet_of
from prestep.sim.predict import load_fabric
from prestep.sim.rl.constants import Constants, constants
from prestep.sim.rl.section import Rl
from prestep.sim.spec.rules.layout import check_scenario
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from prestep.workloads.models.model import ModelSpec, load_model

# Rollouts that are predicted one by one: forty times those of the largest published step, and more.
MOST_ROLLOUTS = 1_000_000


@dataclass(frozen=True)
class Pools:
    """A scenario with [rl], its cluster, and who does what on it."""

    scenario: Scenario
    fabric: Fabric
    model: ModelSpec
    gpu: Gpu
    training: tuple[str, ...]
    engines: tuple[tuple[str, ...], ...]
    constants: Constants
    host_factor: float = 1.0

    @property
    def rl(self) -> Rl:
        section: Rl = self.scenario.section("rl")
        return section

    @property
    def colocated(self) -> bool:
        """Whether generation and training take turns on the same GPUs."""
        return self.rl.off_policy_steps == 0

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes/s between a GPU and its host's pageable memory; behind NVLink-C2C it reads and writes that itself."""
        gpu, fabric = self.training[0], self.fabric
        way = fabric.route(gpu, fabric.nearest(gpu, "memory"))
        coherent = "c2c" in fabric.links.kind[way].tolist()
        known = self.constants
        return known.coherent_bandwidth if coherent else known.copy_bandwidth

    @property
    def gpus(self) -> int:
        """All GPUs of the step."""
        engines = sum(map(len, self.engines))
        return len(self.training) if self.colocated else len(self.training) + engines

    @property
    def replicas(self) -> int:
        """Data-parallel replicas of training."""
        p = self.scenario.parallel
        return len(self.training) // (p.tp * p.pp * p.cp)


def pools_of(scenario: Scenario) -> Pools:
    """The pools of a scenario on its cluster.

    Raises
    ------
    InputError
        With everything that does not fit.
    """
    model, fabric = load_model(scenario.model, scenario.where), load_fabric(scenario)
    count = min(scenario.cluster.gpus or len(fabric.gpus), len(fabric.gpus))
    InputError.check([*_wrong_lengths(scenario), *_wrong_pools(scenario, model, count)])
    rl, gpus = scenario.section("rl"), fabric.gpus[:count]
    apart = _generating(rl, count)
    training = gpus[: count - apart] if apart else gpus
    generating = gpus[count - apart :] if apart else gpus
    size = rl.generation_tp * rl.generation_pp
    engines = tuple(
        tuple(generating[at : at + size]) for at in range(0, len(generating), size)
    )
    gpu = _slowest(fleet_of(fabric, gpu_of(fabric), tuple(generating)))
    _check_precision(rl, gpu, scenario.where)
    host = rl.engine_host_factor or host_speed(scenario, model, fabric).factor
    return Pools(
        scenario, fabric, model, gpu, tuple(training), engines, constants(), host
    )


def _check_precision(rl: Rl, gpu: Gpu, where: str) -> None:
    """Raises InputError where a GPU has no units for the precision of generation."""
    if rl.generation_precision not in gpu.peak:
        found = f'"{rl.generation_precision}"'
        hint = f"the {gpu.name} has no units for it"
        key, expected = "rl.generation_precision", f"one of {', '.join(gpu.peak)}"
        raise InputError.of(where, key, found, expected, hint)


def _slowest(fleet: Fleet) -> Gpu:
    """The GPU that reads its memory slowest: the engine that has it is waited for."""
    if not fleet.speeds:
        return fleet.gpu
    each = [fleet.of(rank) for rank in range(len(fleet.speeds))]
    return min(each, key=lambda gpu: gpu.bandwidth)


def _generating(rl: Rl, count: int) -> int:
    """GPUs that only generate; 0: all do both."""
    if rl.off_policy_steps == 0:
        return 0
    return count // 2 if rl.generation_gpus is None else rl.generation_gpus


def _wrong_lengths(scenario: Scenario) -> Iterator[Mistake]:
    """Lengths that no rollouts can have."""
    rl, where = scenario.section("rl"), scenario.where
    if rl.prompts is None:
        yield Mistake(where, "rl.prompts", "nothing", "prompts of a step")
    if rl.mean_length <= rl.prompt_length:
        expected = f"more than prompt_length = {rl.prompt_length}"
        hint = "it counts the prompt and what is generated"
        yield Mistake(where, "rl.mean_length", str(rl.mean_length), expected, hint)
    elif rl.mean_new_tokens > rl.most_new_tokens:
        found = f"{rl.mean_new_tokens} generated tokens on average"
        expected = f"at most {rl.most_new_tokens}, the most of a rollout"
        yield Mistake(where, "rl.mean_length", found, expected)
    batch = rl.train_global_batch
    if batch and rl.rollouts % batch:
        expected = f"a divisor of the step's {rl.rollouts} rollouts"
        yield Mistake(where, "rl.train_global_batch", str(batch), expected)
    ahead = rl.rollouts * max(1, rl.off_policy_steps) * max(1.0, rl.batch_multiplier)
    if ahead > MOST_ROLLOUTS:
        found = f"{ahead:.3g} rollouts: prompts * generations of so many steps"
        expected = f"at most {MOST_ROLLOUTS}"
        yield Mistake(where, "rl.off_policy_steps", found, expected)
    if rl.generation_memory > 1:
        found = f"{rl.generation_memory:g}"
        yield Mistake(where, "rl.generation_memory", found, "a share: at most 1")


def _wrong_pools(scenario: Scenario, model: ModelSpec, count: int) -> Iterator[Mistake]:
    """Pools that the cluster, the model or the layout of training does not allow."""
    rl, where = scenario.section("rl"), scenario.where
    if model.kind != "transformer":
        expected = "a transformer, which generates tokens"
        yield Mistake(where, "rl", f"a {model.kind}", expected)
        return
    if sparse := model.sparse_keys:
        expected = "nothing: generation from chosen or compressed keys is not simulated"
        yield Mistake(where, *sparse, expected)
        return
    if rl.generation_gpus is not None and rl.off_policy_steps == 0:
        hint = "with off_policy_steps = 1 they are GPUs of their own"
        expected = "nothing: with off_policy_steps = 0 all GPUs generate"
        found = str(rl.generation_gpus)
        yield Mistake(where, "rl.generation_gpus", found, expected, hint)
        return
    apart = _generating(rl, count)
    if rl.off_policy_steps and not 0 < apart < count:
        expected = f"less than the {count} GPUs of the run: some must train"
        yield Mistake(where, "rl.generation_gpus", str(apart), expected)
        return
    yield from _wrong_engines(rl, model, apart or count, where)
    yield from _wrong_training(scenario, count - apart)


def _wrong_engines(
    rl: Rl, model: ModelSpec, generating: int, where: str
) -> Iterator[Mistake]:
    """Engines that so many generating GPUs, or the model, cannot be dealt to."""
    size = rl.generation_tp * rl.generation_pp
    if generating % size:
        expected = f"a divisor of the {generating} GPUs that generate"
        yield Mistake(where, "rl.generation_tp x generation_pp", str(size), expected)
    if rl.generation_ep not in (1, rl.generation_tp):
        expected = f"1 or generation_tp = {rl.generation_tp}"
        yield Mistake(where, "rl.generation_ep", str(rl.generation_ep), expected)
    if model.heads % rl.generation_tp:
        expected = f"a divisor of the model's {model.heads} heads"
        yield Mistake(where, "rl.generation_tp", str(rl.generation_tp), expected)


def _wrong_training(scenario: Scenario, gpus: int) -> Iterator[Mistake]:
    """A layout of training that does not fill its GPUs."""
    p, where = scenario.parallel, scenario.where
    copy = p.tp * p.pp * p.cp
    if gpus % copy:
        expected = f"a divisor of the {gpus} GPUs that train"
        yield Mistake(where, "parallel.tp x pp x cp", str(copy), expected)
    elif p.dp not in (1, gpus // copy):
        expected = f"{gpus // copy}, or nothing: it follows from the GPUs that train"
        yield Mistake(where, "parallel.dp", str(p.dp), expected)


def as_training(pools: Pools, seq_len: int, microbatches: int) -> Scenario:
    """One optimizer step on packs of `seq_len` tokens, as a scenario of training alone.

    Raises
    ------
    InputError
        If the layout of training does not fit its GPUs.
    """
    s = pools.scenario
    pipelined = s.parallel.pp > 1
    training = replace(
        s.training,
        seq_len=seq_len,
        micro_batch=1,
        global_batch=None,
        grad_accumulation=None if pipelined else microbatches,
        microbatches=microbatches if pipelined else None,
    )
    layout = replace(s.parallel, dp=pools.replicas, microbatches=None)
    cluster = replace(s.cluster, gpus=len(pools.training))
    made = replace(
        s, extensions={}, training=training, parallel=layout, cluster=cluster
    )
    InputError.check(check_scenario(made))
    return made
