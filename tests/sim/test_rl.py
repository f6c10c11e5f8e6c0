"""A step of reinforcement learning: laws of its lengths, its rollout, its phases; and what is refused."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.cli import main
from prestep.sim.costs.spreads import quantile
from prestep.sim.errors import InputError
from prestep.sim.rl.decode import WORKING, Engine
from prestep.sim.rl.lengths import generated, packs
from prestep.sim.rl.pools import pools_of
from prestep.sim.rl.result import UNSEEN, interval_of
from prestep.sim.rl.rollout import rollout_of
from prestep.sim.rl.section import Rl
from prestep.sim.rl.step import RlStep, predict, tensors_of
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.workloads.models.model import load_model
from tests.sample import together

SCENARIO = """
[cluster]
name = "dgx-h100"
[model]
name = "llama3.2-1b"
[training]
framework = "megatron"
[parallel]
tp = 2
data_parallel = "zero1"
[rl]
prompts = 16
generations = 8
mean_length = 400
max_length = 1024
train_global_batch = 64
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rl.toml"
    file.write_text(SCENARIO)
    return file


def step(path: Path, *changes: str) -> RlStep:
    return predict(load_scenario(path, changes))


def engine(path: Path, *changes: str) -> Engine:
    pools = pools_of(load_scenario(path, changes))
    return Engine(pools, pools.engines[0])


LENGTHS = st.builds(
    Rl,
    prompts=st.just(4),
    prompt_length=st.integers(1, 100),
    mean_length=st.integers(101, 1000),
    max_length=st.integers(1101, 4000),
    lengths=st.sampled_from(["lognormal", "exponential", "constant"]),
    spread=st.floats(0.1, 2),
)


@given(LENGTHS, st.integers(1, 300))
def test_lengths_have_the_mean_that_is_said_and_none_is_too_long(
    rl: Rl, count: int
) -> None:
    lengths = generated(rl, count)
    assert len(lengths) == count
    assert max(lengths) <= rl.most_new_tokens
    assert sum(lengths) / count == pytest.approx(rl.mean_new_tokens, abs=1.0)
    assert list(lengths) == sorted(lengths)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_packs_hold_everything_and_less_than_two_thirds_more_than_they_must(
    lengths: list[int],
) -> None:
    """First fit of decreasing lengths takes at most 11/9 of the best, and 2/3 of a pack."""
    count, least = packs(lengths, 100), math.ceil(sum(lengths) / 100)
    assert least <= count <= len(lengths)
    assert count <= 2 * least


def test_packs_by_hand() -> None:
    assert packs([60, 50, 40, 30, 20], 100) == 2
    assert packs([100, 100], 100) == 2


def test_tokens_are_conserved(path: Path) -> None:
    """What all engines generate is what the lengths say; two engines at most a rollout apart."""
    one = engine(path)
    rl, engines = one.pools.rl, len(one.pools.engines)
    lengths = generated(rl, rl.rollouts)
    made = rollout_of(one)
    share = sum(lengths) / engines
    assert share <= made.tokens <= share + rl.most_new_tokens
    assert made.tokens == sum(list(reversed(lengths))[::engines])


def test_the_longest_rollout_bounds_the_step_from_below(path: Path) -> None:
    one = engine(path)
    longest = generated(one.pools.rl, one.pools.rl.rollouts)[-1]
    made = rollout_of(one)
    alone = one.step(1, one.pools.rl.prompt_length)
    assert made.steps >= longest
    assert made.seconds >= longest * alone


def test_parts_of_a_rollout_sum_to_it(path: Path) -> None:
    made = rollout_of(engine(path))
    assert made.seconds == pytest.approx(made.prefill + sum(made.parts.values()))


def test_more_bandwidth_of_hbm_makes_no_rollout_slower(path: Path) -> None:
    times = [
        rollout_of(
            engine(path, "rl.async_scheduling=false", f"gpu.hbm_bandwidth={factor}x")
        ).parts
        for factor in (0.5, 1, 2, 4)
    ]
    read = [parts["weights"] + parts["kv_cache"] for parts in times]
    whole = [sum(parts.values()) for parts in times]
    assert read == sorted(read, reverse=True) and read[0] > read[-1]
    assert whole == sorted(whole, reverse=True)


def test_the_slowest_gpu_decodes(path: Path) -> None:
    one = engine(path, "gpu[3].hbm_bandwidth=0.5x")
    assert one.gpu.bandwidth == engine(path).gpu.bandwidth / 2


@pytest.mark.parametrize("limit", [1, 2, 4, 16])
def test_fewer_rollouts_at_once_take_longer(path: Path, limit: int) -> None:
    few = rollout_of(engine(path, f"rl.max_num_seqs={limit}"))
    more = rollout_of(engine(path, f"rl.max_num_seqs={2 * limit}"))
    assert few.most <= limit
    assert few.seconds >= more.seconds


def test_a_full_cache_makes_rollouts_wait(path: Path) -> None:
    one = engine(path)
    made = rollout_of(one)
    weights = one.weights / one.gpu.memory
    few = 3 * one.pools.rl.mean_length * one.cached
    room = weights + (WORKING + few) / one.gpu.memory
    tight = rollout_of(engine(path, f"rl.generation_memory={room}"))
    assert tight.most < made.most
    assert tight.seconds > made.seconds
    assert tight.tokens == made.tokens


def test_lengths_that_are_alike_empty_the_batch_at_once(path: Path) -> None:
    made = rollout_of(engine(path, "rl.lengths=constant"))
    assert made.tail == 0
    assert made.steps == engine(path).pools.rl.mean_new_tokens
    assert rollout_of(engine(path)).seconds > made.seconds


def test_on_policy_is_the_sum_of_its_phases(path: Path) -> None:
    made = step(path)
    assert made.step_time == pytest.approx(sum(made.phases.values()))
    assert dict(made.idle) == {"generation": 0, "training": 0}
    assert made.pools.gpus == 8
    optimizer_steps = 16 * 8 // 64
    assert made.trained.steps == optimizer_steps


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_off_policy_takes_the_longer_side_and_the_refit(path: Path, steps: int) -> None:
    made = step(path, f"rl.off_policy_steps={steps}")
    bound = max(made.generating, made.learning)
    assert made.step_time == pytest.approx(bound + made.refit.seconds)
    assert made.step_time == pytest.approx(sum(made.exposed.values()))
    assert min(made.idle.values()) == 0
    assert made.pools.gpus == 8
    assert len(made.pools.training) == 4
    assert not {*made.pools.training} & {g for e in made.pools.engines for g in e}


def test_more_steps_off_make_no_rollout_slower(path: Path) -> None:
    """Steps that are under way together fill the tail of the longest rollouts."""
    times = [
        rollout_of(engine(path, f"rl.off_policy_steps={k}")).seconds for k in (1, 2, 4)
    ]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]


def test_several_steps_off_keep_the_batch_full(path: Path) -> None:
    """New rollouts take the places of those that have ended, so no step has a tail: its tokens, a full batch each time."""
    full = rollout_of(engine(path, "rl.off_policy_steps=4", "rl.max_num_seqs=8"))
    drained = rollout_of(engine(path, "rl.off_policy_steps=1", "rl.max_num_seqs=8"))
    assert full.tail == 0 < drained.tail
    assert full.batch == pytest.approx(full.most, rel=0.05) and full.most == 8
    assert full.tokens == pytest.approx(drained.tokens, rel=0.05)


def test_a_forward_pass_is_less_than_training(path: Path) -> None:
    made = step(path)
    assert 0 < made.trained.pass_ < made.trained.training


def test_a_forward_pass_fills_one_pipeline_however_many_are_simulated(
    path: Path,
) -> None:
    """A GPU that is hardly slower has its own pipeline simulated beside the one that stands for the others."""
    layout = ("parallel.tp=1", "parallel.pp=2")
    folded, apart = (
        step(path, *layout, *more) for more in ((), ("gpu[0].flops=0.9999999x",))
    )
    assert apart.trained.pass_ == pytest.approx(folded.trained.pass_, rel=1e-6)


def test_without_a_reference_there_is_one_pass_less(path: Path) -> None:
    both, one = step(path), step(path, "rl.reference=false")
    assert both.phases["logprobs"] == pytest.approx(2 * one.phases["logprobs"])
    assert one.refit.copies < both.refit.copies


def test_throughput_counts_prompts_and_all_gpus(path: Path) -> None:
    made = step(path)
    tokens = 16 * 8 * 400
    assert made.tokens == tokens
    rate = tokens / made.step_time / 8
    assert made.tokens_per_second_per_gpu == pytest.approx(rate)


def test_tensors_by_hand() -> None:
    """Llama 3 8B: 32 layers of four projections, three of the feed-forward and two norms; embedding, norm, head."""
    scenario_model = load_scenario_model("llama3-8b")
    assert tensors_of(scenario_model) == 32 * (4 + 3 + 2) + 3


def load_scenario_model(name: str):  # type: ignore[no-untyped-def]
    from prestep.workloads.job.model import Model

    return load_model(Model(name=name), "test")


def test_a_constant_that_is_slower_makes_the_step_slower(path: Path) -> None:
    from prestep.sim.rl.step import step_of
    from prestep.sim.rl.training import trained

    pools = pools_of(load_scenario(path, ()))
    learned = trained(pools)
    base = step_of(pools, learned).step_time
    known = pools.constants
    for change in (
        {"step_host": 50 * known.step_host},
        {"tensor_host": 2 * known.tensor_host},
        {"copy_bandwidth": known.copy_bandwidth / 2},
        {"step_overhead": 2 * known.step_overhead},
    ):
        slower = replace(pools, constants=known.at(**change))
        assert step_of(slower, learned).step_time > base


@together(
    ("change", "told"),
    [
        ("rl.generations=0", "at least 1"),
        ("rl.mean_length=100", "rl.mean_length"),
        ("rl.mean_length=1025", "at most"),
        ("rl.train_global_batch=100", "a divisor"),
        ("rl.generation_gpus=4", "off_policy_steps"),
        ("rl.generation_tp=3", "a divisor"),
        ("rl.generation_memory=1.5", "a share"),
        ("rl.off_policy_steps=99999999999999999999", "at most 1000000"),
        ("rl.generation_memory=0.03", "the longest rollout"),
        ("parallel.dp=3", "it follows"),
        ("model.name=resnet50", "a transformer"),
    ],
)
def test_what_does_not_fit_is_refused(path: Path, change: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        step(path, change)


def test_generation_wants_units_for_its_format(path: Path) -> None:
    """An A100 computes no fp8, whoever asks."""
    changes = "cluster.name=dgx-a100", "rl.generation_precision=fp8"
    with pytest.raises(InputError, match=r"rl\.generation_precision.*a100"):
        step(path, *changes)


def test_all_gpus_cannot_generate_when_others_train(path: Path) -> None:
    with pytest.raises(InputError, match="some must train"):
        step(path, "rl.off_policy_steps=1", "rl.generation_gpus=8")


def test_the_command_prints_phases_and_json(path: Path) -> None:
    page = CliRunner().invoke(main, ["run", str(path)])
    assert page.exit_code == 0
    for word in ("rollout", "logprobs", "training", "refit", "guess", "interval"):
        assert word in page.output
    told = json.loads(CliRunner().invoke(main, ["run", str(path), "--json"]).output)
    assert sum(told["breakdown"].values()) == pytest.approx(told["step_time"])
    assert told["interval"]["low"] < told["step_time"] < told["interval"]["high"]


def test_whatif_takes_steps_off(path: Path) -> None:
    asked = ["whatif", str(path), "--set", "rl.off_policy_steps=1", "--json"]
    told = json.loads(CliRunner().invoke(main, asked).output)
    off = step(path, "rl.off_policy_steps=1").step_time
    assert told["changed"]["step_time"] == pytest.approx(off)
    assert told["changed"]["breakdown"]["refit"] < told["base"]["breakdown"]["refit"]


def test_ray_lets_no_host_schedule_beside_the_gpu(path: Path) -> None:
    """vLLM's executor over Ray does not support async scheduling, so all of a host's time is between steps."""
    changes = ("rl.generation_tp=2", "rl.executor=ray")
    known = engine(path, *changes)
    between = engine(path, "rl.generation_tp=2", "rl.async_scheduling=false")
    told, asked = known.parts(8, 300.0), between.parts(8, 300.0)
    added = known.pools.constants.ray_host
    assert told["host"] == pytest.approx(asked["host"] + added)
    assert {**told, "host": 0} == {**asked, "host": 0}


def test_an_engine_of_one_gpu_needs_no_ray(path: Path) -> None:
    alone = engine(path, "rl.executor=ray")
    assert alone.parts(8, 300.0) == engine(path).parts(8, 300.0)


def test_an_engine_may_have_a_host_factor_of_its_own(path: Path) -> None:
    """Training's host and an engine's run other code."""
    changes = ("cluster.host_factor=3", "rl.async_scheduling=false")
    own = engine(path, *changes, "rl.engine_host_factor=1").parts(8, 300.0)
    known = engine(path, *changes).parts(8, 300.0)
    assert known["host"] == pytest.approx(3 * own["host"])


def test_copies_are_faster_where_the_gpu_reads_the_hosts_memory_itself(
    path: Path,
) -> None:
    grace = engine(path, "cluster.name=gb200-nvl72", "cluster.hosts=2").pools
    xeon = engine(path).pools
    assert grace.copy_bandwidth == grace.constants.coherent_bandwidth
    assert xeon.copy_bandwidth == xeon.constants.copy_bandwidth
    assert grace.copy_bandwidth > xeon.copy_bandwidth


def test_a_forward_pass_that_waits_for_its_host_gains_from_longer_packs(
    path: Path,
) -> None:
    """Twice as long packs are half as many, and the host takes as long for each."""
    slow = "cluster.host_factor=200"
    short = step(path, slow, "rl.logprob_pack=1").trained
    long = step(path, slow, "rl.logprob_pack=2").trained
    assert long.pass_ == pytest.approx(short.pass_ / 2, rel=0.1)


def test_no_step_is_surer_than_one_of_a_group_that_was_left_out(path: Path) -> None:
    made = interval_of(step(path))
    assert made.spread >= UNSEEN
    reach = math.exp(quantile(made.nominal) * made.spread)
    assert made.high / made.low == pytest.approx(reach**2)


@given(st.integers(1, 400), st.floats(0.0, 0.8))
@settings(deadline=None, max_examples=20)
def test_a_batch_meets_fewer_experts_where_routers_have_favourites(
    batch: int, gini: float
) -> None:
    """Evenly spread tokens meet most experts; all at least as many as one token chooses, and none more than there are."""
    even, uneven = (_of_experts(said) for said in ("uniform", f"gini {gini:.3f}"))
    m = even.model
    missed = (1 - m.experts_per_token / m.experts) ** batch
    assert even.met(batch) == pytest.approx(m.experts * (1 - missed))
    assert uneven.met(batch) <= even.met(batch) + 1e-9
    assert uneven.met(batch) <= uneven.met(batch + 1) <= m.experts
    assert uneven.step(batch, 500) <= even.step(batch, 500) + 1e-12


@cache
def _of_experts(imbalance: str) -> Engine:
    table = tomllib.loads(SCENARIO)
    table["model"] = {"name": "qwen3-30b-a3b"}
    table["parallel"] = {"ep": 8, "data_parallel": "zero1", "imbalance": imbalance}
    table["rl"]["generation_tp"] = 2
    pools = pools_of(parse_scenario(table, "test"))
    return Engine(pools, pools.engines[0])


def test_log_probabilities_wait_for_a_host_that_has_no_lead(path: Path) -> None:
    """Where the host paces forward passes, GPUs that compute faster make them no longer: in training it was ahead."""
    host = "cluster.host_factor=1"
    usual = step(path, host).trained.pass_
    quick = step(path, host, "cluster.set={'gpu.flops'='1.5x'}").trained.pass_
    assert quick <= usual * (1 + 1e-6)
    slower = step(path, "cluster.host_factor=2").trained.pass_
    assert slower > 1.5 * usual
