"""Laws of what a PyTorch trainer chooses ([pytorch]), and of fully sharded data parallelism in both of its forms."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict, step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import load_model
from prestep.workloads.torch.lower import lower
from tests.executed import executed
from tests.sample import together
from tests.workloads.small import (
    LAYERS,
    SEQ,
    TRANSFORMER,
    Op,
    communications,
    ops,
    volume,
)

UNITS = LAYERS + 1  # blocks, and the root with embedding, final norm and head


def eager(
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **pytorch: Any,
) -> Scenario:
    tables = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER | (model or {}),
        "training": {"seq_len": SEQ, "micro_batch": 2, **(training or {})},
        "parallel": {"dp": 4, "data_parallel": "fsdp"},
        "pytorch": pytorch,
    }
    return parse_scenario(tables, "trainer.toml")


def lowered(
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **pytorch: Any,
) -> Lowered:
    s = eager(training, model, **pytorch)
    return lower(s, load_model(s.model))


def products(low: Lowered, phase: str = "") -> list[Op]:
    return [
        op
        for op in ops(low)
        if op.kernel and "mm" in op.kernel.kind and phase in ("", op.phase)
    ]


def test_flat_parameters_move_the_same_bytes() -> None:
    """FSDP1 gathers and reduces what FSDP2 does, unit by unit, but keeps the root's parameters for backward."""
    two, one = lowered(), lowered(fsdp="1")
    assert volume(one, "dp reduce_scatter") == volume(two, "dp reduce_scatter")
    assert (
        communications(one)["dp reduce_scatter"]
        == UNITS
        == communications(two)["dp reduce_scatter"]
    )
    assert volume(one, "dp all_gather") == volume(two, "dp all_gather")


@pytest.mark.parametrize("fsdp", ["1", "2"])
def test_gradients_reduced_in_every_microbatch(fsdp: str) -> None:
    """A trainer that never says no_sync reduces as often as it has microbatches."""
    last = lowered({"grad_accumulation": 3}, fsdp=fsdp)
    every = lowered({"grad_accumulation": 3}, fsdp=fsdp, reduce_every_microbatch=True)
    assert communications(last)["dp reduce_scatter"] == UNITS
    assert communications(every)["dp reduce_scatter"] == 3 * UNITS


@pytest.mark.parametrize("fsdp", ["1", "2"])
def test_gradients_reduced_in_fp32_are_twice_the_bytes(fsdp: str) -> None:
    """The type of the reduction says how many bytes it moves, and no gather changes."""
    narrow, wide = lowered(fsdp=fsdp), lowered(fsdp=fsdp, reduce_dtype="fp32")
    assert volume(wide, "dp reduce_scatter") == 2 * volume(narrow, "dp reduce_scatter")
    assert volume(wide, "dp all_gather") == volume(narrow, "dp all_gather")


def test_recomputation_stops_early_since_2_1() -> None:
    """Before, the last product of every block is computed once more in backward."""
    old, new = (
        lowered({"recompute": "full"}, version=version) for version in ("2.0", "2.1")
    )
    assert len(products(old)) == len(products(new)) + LAYERS


def test_recomputation_of_products_lies_between_none_and_all() -> None:
    """By operator, every other product is kept, and so is attention."""
    none, some, full = (
        products(lowered({"recompute": how})) for how in ("none", "products", "full")
    )
    assert len(none) < len(some) < len(full)
    assert len(some) - len(none) == pytest.approx(
        (len(full) - len(none)) / 2, abs=LAYERS
    )
    every, other = (lowered({"recompute": how}) for how in ("full", "alternate"))
    assert 2 * (len(products(other)) - len(none)) == len(products(every)) - len(none)


def test_joined_projection_has_the_same_parameters_and_work() -> None:
    """Queries, keys and values of one projection cost the flops of three, in two products fewer a pass."""
    apart, joined = lowered(), lowered(joined_qkv=True)
    assert joined.parameters == apart.parameters
    assert sum(op.kernel.flops for op in products(joined) if op.kernel) == sum(
        op.kernel.flops for op in products(apart) if op.kernel
    )
    assert len(products(apart)) - len(products(joined)) == 3 * 2 * LAYERS


def test_triton_attention_transposes_nothing() -> None:
    """Heads stay behind tokens: as many scores, and no copy between attention and its projections."""
    plain, triton = lowered(), lowered(attention="triton")

    def strided(low: Lowered) -> int:
        return sum(
            op.kernel is not None and op.kernel.kind == "aten copy" for op in ops(low)
        )

    def scores(low: Lowered) -> float:
        return sum(
            op.kernel.flops
            for op in ops(low)
            if op.kernel and "attention" in op.kernel.kind
        )

    assert scores(triton) == scores(plain)
    assert strided(triton) == 0 < strided(plain)


def test_metrics_cost_a_pass_over_the_logits_each() -> None:
    """Every further metric adds the same kernels to every microbatch."""
    counts = [len(ops(lowered(metrics=n))) for n in range(3)]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0


def test_an_optimizer_by_tensor_takes_longer() -> None:
    """Eight kernels for each tensor move more than one for all; fp32 more than bf16."""
    times = [
        step_time(eager(**p))
        for p in (
            {},
            {"fused_optimizer": False},
            {"fused_optimizer": False, "master_weights": True},
        )
    ]
    assert times == sorted(times)


def test_fp8_is_of_the_blocks_alone() -> None:
    """Linear layers of blocks compute in fp8, the head does not; operands are quantized first."""
    low = lowered({"precision": "fp8"})
    kinds = {(op.layer >= 0, op.kernel.dtype) for op in products(low) if op.kernel}
    assert kinds == {(True, "fp8"), (False, "bf16")}


@together(
    ("tables", "key"),
    [
        (
            {"training": {"framework": "megatron"}, "pytorch": {"metrics": 1}},
            "pytorch.metrics",
        ),
        (
            {"parallel": {"dp": 4, "data_parallel": "ddp"}, "pytorch": {"fsdp": "1"}},
            "pytorch.fsdp",
        ),
        ({"pytorch": {"prefetch": "after"}}, "pytorch.prefetch"),
        (
            {
                "training": {"framework": "pytorch-compiled"},
                "pytorch": {"joined_qkv": True},
            },
            "pytorch.joined_qkv",
        ),
        (
            {"parallel": {"dp": 4, "data_parallel": "fsdp", "fsdp_shards": 3}},
            "parallel.fsdp_shards",
        ),
        (
            {"parallel": {"dp": 4, "data_parallel": "ddp", "fsdp_shards": 2}},
            "parallel.fsdp_shards",
        ),
        (
            {
                "parallel": {
                    "dp": 4,
                    "data_parallel": "zero2",
                    "reshard_after_forward": True,
                }
            },
            "parallel.reshard_after_forward",
        ),
        (
            {
                "training": {"framework": "megatron"},
                "parallel": {"dp": 4, "data_parallel": "fsdp", "fsdp_shards": 3},
            },
            "parallel.fsdp_shards",
        ),
    ],
)
def test_choices_that_nothing_follows_are_refused(
    tables: dict[str, Any], key: str
) -> None:
    """A key that its framework or way of data parallelism does not have is a mistake, not ignored."""
    plain = {
        "cluster": {"name": "h200-host-4"},
        "model": TRANSFORMER,
        "training": {"seq_len": SEQ},
        "parallel": {"dp": 4, "data_parallel": "fsdp"},
    }
    with pytest.raises(InputError) as caught:
        parse_scenario({**plain, **tables}, "trainer.toml")
    assert [mistake.key for mistake in caught.value.mistakes] == [key]


def sharded(
    parallel: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **megatron: Any,
) -> Scenario:
    tables = {
        "cluster": {"name": "dgx-h100"},
        "model": TRANSFORMER,
        "training": {
            "framework": "megatron",
            "seq_len": SEQ,
            "global_batch": 16,
            **(training or {}),
        },
        "parallel": {"dp": 8, "data_parallel": "fsdp", **(parallel or {})},
        "megatron": {"vocab_multiple": 1, "main_grads": "bf16", **megatron},
    }
    return parse_scenario(tables, "sharded.toml")


def moved(s: Scenario, axis: str, op: str) -> float:
    simulation = executed(s, 1)
    graph = simulation.lowered.graph
    return sum(
        graph.comms[c].size
        for p in graph.programs
        for parts in p.parts
        for c in parts
        if (graph.comms[c].axis, graph.comms[c].op) == (axis, op)
    )


def test_sharded_layers_are_gathered_twice_and_reduced_once_a_microbatch() -> None:
    """Two bytes a parameter each time; embedding and head are gathered once a step, with parameters kept all are."""
    s = sharded()
    model = load_model(s.model)
    whole = 2.0 * stage_parameters(model, LAYERS, True, True)
    outside = 2.0 * (2 * model.vocab * model.hidden + model.hidden)
    layers = whole - outside
    assert moved(s, "dp", "reduce_scatter") == pytest.approx(2 * whole)
    assert moved(s, "dp", "all_gather") == pytest.approx(2 * 2 * layers + outside)
    kept = sharded({"reshard_after_forward": False})
    assert moved(kept, "dp", "all_gather") == pytest.approx(whole)
    assert moved(kept, "dp", "reduce_scatter") == pytest.approx(whole)


def test_hybrid_shards_are_summed_over_their_copies() -> None:
    """Shards of half the ranks: gathers within a half, and the reduced shards all-reduced between the halves."""
    s = sharded({"fsdp_shards": 4}, {"global_batch": 8})
    model = load_model(s.model)
    whole = 2.0 * stage_parameters(model, LAYERS, True, True)
    assert moved(s, "replicas", "all_reduce") == pytest.approx(whole / 4)
    assert moved(sharded(training={"global_batch": 8}), "replicas", "all_reduce") == 0


def test_sharding_saves_memory_and_not_work() -> None:
    """Fully sharded ranks hold less than those that shard the optimizer alone, and never compute less."""
    full, one = sharded(), sharded({"data_parallel": "zero1"})
    assert predict(full).peak_memory[0].total < predict(one).peak_memory[0].total
    assert predict(full).breakdown["compute"] >= 0.9 * predict(one).breakdown["compute"]


def test_megatrons_recomputation_may_stop_early() -> None:
    """None < by operator < all but the last product < all."""
    times = [
        step_time(sharded(training={"recompute": how}, recompute_early_stop=early))
        for how, early in (
            ("none", False),
            ("products", True),
            ("full", True),
            ("full", False),
        )
    ]
    assert times == sorted(times)
    assert times[0] == step_time(sharded(recompute_early_stop=True))


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_experts_are_sharded_over_the_ranks_that_have_the_same(ep: int) -> None:
    """Megatron's FSDP gathers them twice in 16 bits and reduces them once in fp32; nothing moves where no rank shares them."""
    whole = TRANSFORMER["layers"] * 8 * 3 * TRANSFORMER["hidden"] * TRANSFORMER["ffn"]
    sent = _bytes_of_experts(ep)
    here = whole / ep if ep < 8 else 0
    assert sent["all_gather"] == pytest.approx(2 * 2 * here, rel=1e-12)
    assert sent["reduce_scatter"] == pytest.approx(4 * here, rel=1e-12)


def _bytes_of_experts(ep: int) -> dict[str, float]:
    """Bytes that one of eight ranks' exchanges of experts have, by operation."""
    tables = {
        "cluster": {"name": "dgx-h100"},
        "model": TRANSFORMER | {"experts": 8, "experts_per_token": 2},
        "training": {"framework": "megatron", "seq_len": SEQ},
        "parallel": {"dp": 8, "ep": ep, "data_parallel": "fsdp"},
    }
    graph = executed(parse_scenario(tables, "experts.toml")).lowered.graph
    sent = {"all_gather": 0.0, "reduce_scatter": 0.0}
    for part in (part for parts in graph.programs[0].parts for part in parts):
        comm = graph.comms[part]
        if comm.axis == "edp":
            sent[comm.op] += comm.size
    return sent
