"""Sharded replicas in PyTorch: HSDP, ZeRO 1 and 2, FSDP in a pipeline. Bytes and memory by the arithmetic of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.sharding.redundancy import partition
from tests.executed import Executed, executed, step_time
from tests.workloads.small import (
    HIDDEN,
    LAYERS,
    TRANSFORMER,
    Op,
    communications,
    lowered,
    ops,
    scenario,
    volume,
)

GATHER, SCATTER = "dp all_gather", "dp reduce_scatter"
PIPELINES = (
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("zero-bubble", 2),
    ("zbv", 2),
    ("dualpipe", 2),
)
every_pipeline = pytest.mark.parametrize(("schedule", "vpp"), PIPELINES)


def issued(rows: list[Op]) -> list[tuple[Any, ...]]:
    """What a rank issues, without the numbers of its communications."""
    return [(op.name, op.stream, op.kernel, op.size, op.deps) for op in rows]


def in_pipeline(
    schedule: str, vpp: int, runs: int = 1, **parallel: Any
) -> tuple[Lowered, Callable[[str], float]]:
    """A pipeline of two ranks, and what sums the bytes of an operation over them."""
    found = lowered(
        training={"microbatches": 4, "grad_accumulation": runs},
        **({"dp": 2, "data_parallel": "fsdp"} | parallel),
        pp=2,
        vpp=vpp,
        schedule=schedule,
    )
    return found, lambda name: sum(volume(found, name, rank) for rank in (0, 1))


@given(st.sampled_from(((4, 2), (4, 4), (2, 2))), st.sampled_from(("1", "2")))
@settings(max_examples=8, deadline=None)
def test_hybrid_shards_are_summed_between_their_copies(
    sizes: tuple[int, int], fsdp: str
) -> None:
    """Gathered and scattered among the ranks of a copy; each shard all-reduced between copies, once a step."""
    dp, shards = sizes
    s = scenario(dp=dp, data_parallel="fsdp", fsdp_shards=shards)
    s = type(s)(**{**vars(s), "pytorch": type(s.pytorch)(fsdp=fsdp)})  # type: ignore[arg-type]
    found = executed(s, 1).lowered
    whole = 2.0 * found.parameters
    root = 2.0 * (2 * 1000 + 1) * HIDDEN  # stays between its passes
    assert volume(found, GATHER) == 2 * whole - root
    assert volume(found, SCATTER) == whole
    between = whole / shards if shards < dp else 0.0
    assert volume(found, "replicas all_reduce") == pytest.approx(between)
    groups = {(c.axis, len(c.groups[0])) for c in found.graph.comms}
    copies = {("replicas", dp // shards)} if shards < dp else set()
    assert groups == {("dp", shards)} | copies


def test_a_copy_on_every_rank_gathers_nothing() -> None:
    """One shard each: parameters are copied in and out, gradients all-reduced whole; FSDP1 would be DDP."""
    found = lowered(dp=4, data_parallel="fsdp", fsdp_shards=1)
    assert communications(found) == {"replicas all_reduce": LAYERS + 1}
    assert volume(found, "replicas all_reduce") == 2.0 * found.parameters
    s = scenario(dp=4, data_parallel="fsdp", fsdp_shards=1)
    with pytest.raises(InputError, match="NO_SHARD"):
        executed(replace(s, pytorch=replace(s.pytorch, fsdp="1")))


def test_the_groups_of_hybrid_shards_are_neighbours_and_their_peers() -> None:
    """Replicas 0 and 1 hold a copy, 2 and 3 another; 0 and 2 have the same shard."""
    found = lowered(dp=4, data_parallel="fsdp", fsdp_shards=2)
    groups = {(c.axis, c.groups) for c in found.graph.comms}
    assert groups == {
        ("dp", ((0, 1), (2, 3))),
        ("replicas", ((0, 2), (1, 3))),
    }


def test_one_copy_of_hybrid_shards_is_fsdp() -> None:
    one, plain = (
        lowered(dp=4, data_parallel="fsdp", **how) for how in ({"fsdp_shards": 4}, {})
    )
    assert issued(ops(one)) == issued(ops(plain))


def test_zero_2_is_fsdp_that_frees_nothing_after_the_forward_pass() -> None:
    """SHARD_GRAD_OP: gathered once a step, reduced once; "zero3" is "fsdp"."""

    def step(**how: Any) -> list[tuple[Any, ...]]:
        return issued(ops(lowered(dp=4, **how)))

    kept = step(data_parallel="fsdp", reshard_after_forward=False)
    assert step(data_parallel="zero2") == kept
    assert step(data_parallel="zero3") == step(data_parallel="fsdp") != kept


@every_pipeline
def test_a_sharded_pipeline_gathers_and_reduces_every_stage_once_a_run(
    schedule: str, vpp: int
) -> None:
    """All parameters of a rank stay gathered from its first pass to the end of the schedule's last."""
    for runs in (1, 2):
        found, bytes_of = in_pipeline(schedule, vpp, runs)
        whole = 2.0 * found.parameters
        assert bytes_of(GATHER) == bytes_of(SCATTER) == runs * whole


@every_pipeline
def test_one_replica_of_a_sharded_pipeline_is_a_pipeline(
    schedule: str, vpp: int
) -> None:
    sharded, _ = in_pipeline(schedule, vpp, dp=1)
    plain, _ = in_pipeline(schedule, vpp, dp=1, data_parallel="none")
    for rank in (0, 1):
        assert issued(ops(sharded, rank)) == issued(ops(plain, rank))


def test_a_sharded_pipeline_reduces_after_its_last_backward_pass() -> None:
    """perform_reduce_grad: no kernel of backward comes after the first reduce-scatter but the copies for the others."""
    found, _ = in_pipeline("1f1b", 1)
    rows = ops(found, 1)
    first = next(op.index for op in rows if op.name == "reduce_scatter")
    after = {op.kernel.kind for op in rows[first:] if op.kernel and op.phase != 2}
    update = {"aten _fused_adamw_", "aten _foreach_add_", "aten add_", "add"}
    assert after - update <= {"copy_h2d", "chunk_cat", "aten cat"}


def test_freed_after_forward_every_microbatch_gathers_its_stage_again() -> None:
    """GPipe: four forward passes and the first backward pass, which leaves the parameters there for the others.

    What is outside of the blocks, the root of its stage, is gathered once.
    """
    found, bytes_of = in_pipeline("gpipe", 1, reshard_after_forward=True)
    root = (2 * 1000 + 1) * HIDDEN
    assert bytes_of(GATHER) == 2.0 * (5 * (found.parameters - root) + root)
    assert bytes_of(SCATTER) == 2.0 * found.parameters


def test_fsdp1_reduces_in_every_pass_of_a_pipeline() -> None:
    """Its hooks know nothing of the schedule; where backward is split they are not called, which is refused."""

    def flat(schedule: str, vpp: int = 1) -> Any:
        s = scenario(
            TRANSFORMER,
            {"microbatches": 4},
            dp=2,
            pp=2,
            vpp=vpp,
            schedule=schedule,
            data_parallel="fsdp",
        )
        return type(s)(**{**vars(s), "pytorch": type(s.pytorch)(fsdp="1")})

    found = executed(flat("1f1b"), 1).lowered
    reduced = sum(volume(found, SCATTER, rank) for rank in (0, 1))
    assert reduced == 4 * 2.0 * found.parameters
    with pytest.raises(InputError, match="split backward"):
        executed(flat("zero-bubble", 2))


def test_a_stage_keeps_its_shards_and_its_gathered_parameters() -> None:
    """Rank 1 of two: half of the blocks, norm and head. Shards: a half of them; Adam's two moments; all bf16."""
    found, _ = in_pipeline("1f1b", 1)
    of_block = (
        2 * HIDDEN  # norms
        + HIDDEN * (HIDDEN + 2 * HIDDEN // 2 + HIDDEN)  # queries, keys, values, output
        + 3 * HIDDEN * 512
    )
    held = LAYERS // 2 * of_block + HIDDEN + 1000 * HIDDEN
    memory = found.memory[1]
    assert memory.before["parameters"] == pytest.approx(2 * held / 2, rel=0.01)
    assert memory.before["optimizer"] == pytest.approx(2 * 2 * held / 2, rel=0.01)
    assert memory.at_peak["buffers"] >= 2.0 * held  # gathered


@given(st.lists(st.integers(1, 10**9), max_size=40), st.integers(1, 9))
def test_zero_1_deals_out_every_tensor_once(sizes: list[int], ranks: int) -> None:
    """Greedily, so no rank has more than an even share and one tensor."""
    parts = partition(sizes, ranks)
    assert sorted(at for part in parts for at in part) == list(range(len(sizes)))
    loads = [sum(sizes[at] for at in part) for part in parts]
    assert max(loads) <= sum(sizes) / ranks + max(sizes, default=0)


def test_zero_1_averages_like_ddp_and_sends_what_was_updated() -> None:
    ddp, zero = (lowered(dp=4, data_parallel=way) for way in ("ddp", "zero1"))
    assert volume(zero, "dp all_reduce") == volume(ddp, "dp all_reduce")
    assert volume(zero, "dp broadcast") == 2.0 * zero.parameters
    tensors = len(zero.tensors)
    assert communications(zero)["dp broadcast"] == tensors


def over_hosts(model: dict[str, Any], apart: bool) -> Executed:
    """ZeRO 1 over 24 GPUs of three hosts; ``apart``: one GPU differs by nothing, so every rank is simulated."""
    slower = {"gpu[1].clock": "0.9999999x"} if apart else {}
    tables = {
        "cluster": {"name": "rail-h100", "hosts": 3, "gpus": 24, "set": slower},
        "model": model,
        "training": {"seq_len": 128, "micro_batch": 2},
        "parallel": {"dp": 24, "data_parallel": "zero1"},
    }
    return executed(parse_scenario(tables, "hosts.toml"))


def test_zero_1_keeps_the_states_of_its_own_tensors() -> None:
    """All ranks together have the states of every tensor once; those that stand for others have the most."""
    folded, each = (over_hosts(TRANSFORMER, apart).lowered for apart in (False, True))
    states = [memory.before["optimizer"] for memory in each.memory.values()]
    assert len(states) == 24 > len(folded.memory)
    assert sum(states) == pytest.approx(2 * 2.0 * each.parameters, rel=0.01)
    held = [memory.before["optimizer"] for memory in folded.memory.values()]
    assert max(held) == max(states)


@pytest.mark.parametrize("hidden", [HIDDEN, 1024])
def test_zero_1_takes_as_long_folded_as_with_every_rank(hidden: int) -> None:
    """The last of all ranks is among those that are simulated: it has most elements, or its host most tensors."""
    model = TRANSFORMER | {"hidden": hidden, "ffn": 4 * hidden}
    folded, each = (over_hosts(model, apart) for apart in (False, True))
    assert len(folded.run.end) < len(each.run.end) == 24
    assert step_time(folded) == pytest.approx(step_time(each), rel=1e-4)


def test_zero_1_is_no_faster_than_ddp_on_slower_links() -> None:
    """Its broadcasts are on the links too, after the update."""
    model = TRANSFORMER | {"hidden": 1024, "ffn": 4096}
    times = {}
    for way in ("ddp", "zero1"):
        s = scenario(model, dp=4, data_parallel=way)
        for factor in ("0.05x", "1x"):
            links = replace(s.cluster, set={"nvlink.bandwidth": factor})
            times[way, factor] = predict(replace(s, cluster=links)).step_time
    assert times["zero1", "0.05x"] > times["zero1", "1x"]
    lost = [times[way, "0.05x"] - times[way, "1x"] for way in ("ddp", "zero1")]
    assert lost[1] > lost[0]
