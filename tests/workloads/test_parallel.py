"""FSDP, tensor, sequence and expert parallelism: how many collectives, of how many bytes, and what they wait for.

Counts of real runs are from the Kineto traces of PyTorch 2.11 on 4x H200 that are named (lab/cases/h200).
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from tests.executed import executed
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    SEQ,
    TRANSFORMER,
    Op,
    communications,
    lowered,
    ops,
    scenario,
    volume,
)

GATHER, SCATTER = "dp all_gather", "dp reduce_scatter"
VOCAB = 1000
ACTIVATION = 2.0 * 2 * SEQ * HIDDEN  # bf16 of a microbatch of two samples


def llama1b(**parallel: object) -> dict[str, object]:
    return {
        "model": {"name": "llama3-1b-plain"},
        "training": {"seq_len": 2048, "micro_batch": 2},
        **parallel,
    }


def test_fsdp_collectives_are_those_of_a_trace() -> None:
    """1b-fsdp4-b2 (every module wrapped with reshard_after_forward=True): 32 all-gathers of blocks, two of the root."""
    low = lowered(**llama1b(dp=4, data_parallel="fsdp", reshard_root=True))  # type: ignore[arg-type]
    sizes = [(c.op, c.size / 2) for op in ops(low) for c in op.comms]
    assert {pair: sizes.count(pair) for pair in sizes} == {
        ("all_gather", 60_821_504): 32,
        ("reduce_scatter", 60_821_504): 16,
        ("all_gather", 525_338_624): 2,
        ("reduce_scatter", 525_338_624): 1,
    }


def gathers(freed: bool, microbatches: int) -> int:
    """A group is gathered for every forward pass, and again for backward if it was freed between."""
    return microbatches * (2 if freed else 1)


@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from(("one", "split")),
    st.integers(1, 3),
    st.sampled_from((2, 4)),
)
@settings(max_examples=16, deadline=None)
def test_fsdp2_gathers_each_group_by_its_policy(
    reshard: bool, reshard_root: bool, groups: str, accumulation: int, dp: int
) -> None:
    """Bytes are parameters times passes: backward frees what forward kept; gradients are scattered once a step."""
    low = lowered(
        dp=dp,
        data_parallel="fsdp",
        reshard_after_forward=reshard,
        reshard_root=reshard_root,
        root_groups=groups,
        training={"grad_accumulation": accumulation},
    )
    blocks, outer = gathers(reshard, accumulation), gathers(reshard_root, accumulation)
    first = blocks if groups == "split" else outer
    embedding, head = VOCAB * HIDDEN, VOCAB * HIDDEN + HIDDEN
    inside = low.parameters - embedding - head
    units = LAYERS + (2 if groups == "split" else 1)
    split = first if groups == "split" else 0
    assert communications(low) == {
        GATHER: blocks * LAYERS + outer + split,
        SCATTER: units,
    }
    expected = blocks * inside + first * embedding + outer * head
    assert volume(low, GATHER) == 2.0 * expected
    assert volume(low, SCATTER) == 2.0 * low.parameters


@given(st.booleans(), st.integers(1, 3), st.booleans())
@settings(max_examples=8, deadline=None)
def test_fsdp1_keeps_its_root(reshard: bool, accumulation: int, sync: bool) -> None:
    """FULL_SHARD frees all but the root after forward, and all after backward; SHARD_GRAD_OP neither under no_sync."""
    low = lowered(
        dp=4,
        data_parallel="fsdp",
        reshard_after_forward=reshard,
        pytorch={"fsdp": "1", "reduce_every_microbatch": sync},
        training={"grad_accumulation": accumulation},
    )
    outside = 2 * VOCAB * HIDDEN + HIDDEN
    frees = reshard or sync
    blocks = gathers(reshard, accumulation) if frees else 1
    outer = accumulation if frees else 1
    expected = blocks * (low.parameters - outside) + outer * outside
    assert volume(low, GATHER) == 2.0 * expected


def test_a_tied_embedding_is_one_group_with_the_head() -> None:
    """torchtitan wraps [tok_embeddings, norm, output] together where they share a weight."""
    tied = {"model": TRANSFORMER | {"tied_embeddings": True}}
    one, split = (
        lowered(dp=4, data_parallel="fsdp", root_groups=groups, **tied)  # type: ignore[arg-type]
        for groups in ("one", "split")
    )
    assert communications(one) == communications(split)
    assert volume(one, GATHER) == volume(split, GATHER)


def test_the_head_of_split_groups_is_reduced_beside_the_last_block() -> None:
    """Its gradients go when the norm has run backward, not at the end of backward as the root's do."""
    rows = ops(lowered(dp=4, data_parallel="fsdp", root_groups="split"))
    scatters = [op for op in rows if op.name == "reduce_scatter"]
    last = first(rows, "backward", LAYERS - 1).index
    assert scatters[0].index < last < scatters[1].index


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        ({"root_groups": "split", "pytorch": {"fsdp": "1"}}, "root_groups"),
        ({"reshard_root": True, "pytorch": {"fsdp": "1"}}, "reshard_root"),
        ({"reshard_root": True, "framework": "automodel"}, "reshard_root"),
        ({"root_groups": "split", "framework": "megatron"}, "root_groups"),
        ({"root_groups": "split", "mtp_layers": 1}, "root_groups"),
    ],
)
def test_groups_outside_the_blocks_are_refused_where_there_are_none(
    layout: dict[str, object], key: str
) -> None:
    """FSDP1 has one, which stays; other engines shard by their own rules; further predictions use both."""
    rest = dict(layout)
    framework, mtp = rest.pop("framework", "pytorch-eager"), rest.pop("mtp_layers", 0)
    with pytest.raises(InputError, match=f"parallel.{key}"):
        executed(
            scenario(
                TRANSFORMER | {"mtp_layers": mtp},
                dp=4,
                data_parallel="fsdp",
                training={"framework": framework},
                **rest,  # type: ignore[arg-type]
            )
        )


def test_fsdp_keeps_a_share_of_what_ddp_keeps() -> None:
    """Parameters, gradients and optimizer state are divided by the ranks; not resharding costs memory."""
    ddp, fsdp, kept = (
        lowered(dp=4, **how).memory[0]
        for how in (
            {"data_parallel": "ddp"},
            {"data_parallel": "fsdp"},
            {"data_parallel": "fsdp", "reshard_after_forward": False},
        )
    )
    for owner in ("parameters", "optimizer"):
        assert fsdp.at_peak[owner] == pytest.approx(ddp.at_peak[owner] / 4, rel=0.02)
    assert fsdp.peak < kept.peak


def fsdp_rows(**training: object) -> list[Op]:
    return ops(lowered(dp=4, data_parallel="fsdp", training=dict(training)))


def first(rows: list[Op], phase: str, layer: int) -> Op:
    """The first of the layer's own kernels in a pass (copies are FSDP's)."""
    return next(
        op
        for op in rows
        if (op.phase, op.layer, op.stream) == (phase, layer, "compute")
        and op.kernel
        and "norm" in op.name
    )


def test_fsdp_gathers_the_next_block_during_forward() -> None:
    """The gather of a block waits for the copy-out of the one before last (wait_for_unshard), and for no computation."""
    rows = fsdp_rows()
    _, beside, *gathers = [op for op in rows if op.name == "all_gather"][: LAYERS + 1]
    assert not rows[beside.index - 1].deps
    copy_outs = [op.index for op in rows if op.name == "split_with_sizes_copy"]
    for at, gather in enumerate(gathers):
        copy_in = rows[gather.index - 1]
        assert copy_in.name == "foreach_copy" and copy_outs[at] in copy_in.deps
        assert (
            max(d for d in (*copy_in.deps, *gather.deps) if d != copy_in.index)
            <= copy_outs[at]
        )


def test_fsdp_prefetches_the_block_before_during_backward() -> None:
    """When backward of a block begins, the gather of the one before it is under way."""
    rows = fsdp_rows()
    gathers = [op.index for op in rows if op.name == "all_gather"]
    for layer in range(1, LAYERS):
        begun = first(rows, "backward", layer).index
        # All of the forward pass, whose root stays, then last block, ... down to this block, and one more.
        assert (
            sum(index < begun for index in gathers) == LAYERS + 1 + (LAYERS - layer) + 1
        )


def test_fsdp_has_one_reduce_scatter_in_flight() -> None:
    """The copy into a reduce-scatter's input waits for the one before; the optimizer for the last."""
    rows = fsdp_rows()
    scatters = [op.index for op in rows if op.name == "reduce_scatter"]
    copies = [
        op
        for op in rows
        if op.name == "copy_h2d" and rows[op.index + 1].name == "chunk_cat"
    ]
    assert len(copies) == len(scatters) == LAYERS + 1
    for before, copy in zip(scatters, copies[1:], strict=False):
        assert before in copy.deps
    assert scatters[-1] in next(op for op in rows if op.phase == "optimizer").deps


def test_fsdp_gathers_again_for_recomputation_no_more_than_for_backward() -> None:
    """The recomputed forward runs inside the backward's unshard."""
    plain, again = (
        lowered(dp=4, data_parallel="fsdp", training={"recompute": how})
        for how in ("none", "full")
    )
    assert communications(plain) == communications(again)
    assert again.memory[0].peak < plain.memory[0].peak


def test_tensor_parallel_all_reduces_are_those_of_a_trace() -> None:
    """1b-tp4-b4: 112 all-reduces a step of 4 x 2048 x 2048 elements, seven a block."""
    low = lowered(
        {"name": "llama3-1b-plain"}, {"seq_len": 2048, "micro_batch": 4}, tp=4
    )
    sizes = [(c.op, c.size / 2) for op in ops(low) for c in op.comms]
    assert sizes == [("all_reduce", 16_777_216)] * 112


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_forward_and_backward(tp: int) -> None:
    """Two sums forward (attention and feed-forward output), five backward (inputs of q, k, v, w1 and w3)."""
    rows = [op for op in ops(lowered(tp=tp)) if op.comms]
    assert [
        sum(op.phase == phase for op in rows) for phase in ("forward", "backward")
    ] == [2 * LAYERS, 5 * LAYERS]
    assert {op.size for op in rows} == {ACTIVATION}


def test_tensor_parallel_without_gates_has_one_input_less() -> None:
    """w3 is the gate's: four sums backward without it."""
    low = lowered(TRANSFORMER | {"gated": False}, tp=4)
    assert communications(low) == {"tp all_reduce": (2 + 4) * LAYERS}


def products(rows: list[Op]) -> float:
    return sum(
        op.kernel.flops
        for op in rows
        if op.kernel and op.kernel.is_product and op.layer >= 0
    )


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_blocks_share_their_work(tp: int) -> None:
    """Projections of the blocks do 1/tp of the flops; embedding, norms and head stay whole."""
    alone, shared = ops(lowered()), ops(lowered(tp=tp))
    assert products(shared) == pytest.approx(products(alone) / tp) and products(alone)


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_splits_a_sum_in_two(tp: int) -> None:
    """Every all-reduce becomes a gather and a scatter of the same tensor, and the blocks do the same work."""
    plain, split = (lowered(tp=tp, sequence_parallel=flag) for flag in (False, True))
    assert products(ops(split)) == pytest.approx(products(ops(plain)))
    found = {f"{c.op} {op.layer >= 0}": 0 for op in ops(split) for c in op.comms}
    for op in ops(split):
        for c in op.comms:
            found[f"{c.op} {op.layer >= 0}"] += 1
            assert c.size == ACTIVATION
    assert found["all_gather True"] == found["reduce_scatter True"] == 7 * LAYERS
    # Around the blocks: the head's input is gathered, the embedding's gradient too.
    assert {name: n for name, n in found.items() if "False" in name} == {
        "all_gather False": 2
    }


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_splits_the_norms(tp: int) -> None:
    """Norms and additions of the blocks see 1/tp of the tokens, the final norm and the head all of them."""
    plain, split = (lowered(tp=tp, sequence_parallel=flag) for flag in (False, True))
    rows = [
        {
            op.kernel.shape[0]
            for op in ops(low)
            if op.kernel and op.name == "aten._fused_rms_norm.default" and op.layer >= 0
        }
        for low in (plain, split)
    ]
    assert rows == [{2 * SEQ}, {2 * SEQ // tp}]
    heads = [
        [op.kernel for op in ops(low) if op.phase == "forward" and op.kernel][-3:]
        for low in (plain, split)
    ]
    assert heads[0] == heads[1]


def test_all_to_alls_are_those_of_a_trace() -> None:
    """moe-ddp4-ep4-b4: 32 all-to-alls a step of 33,554,432 elements, four in each of eight layers."""
    low = lowered(
        {"name": "moe8x-plain"}, {"seq_len": 2048, "micro_batch": 4}, dp=4, ep=4
    )
    sizes = [(c.op, c.size / 2) for op in ops(low) for c in op.comms if c.axis == "ep"]
    assert sizes == [("all_to_all", 33_554_432)] * 32


@given(st.sampled_from((2, 4)), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_dispatch_and_combine_go_both_ways(
    ep: int, chosen: int, micro_batch: int
) -> None:
    """Two all-to-alls forward and two backward in every layer, of tokens x choices x hidden x 2 bytes."""
    low = lowered(
        EXPERTS | {"experts_per_token": chosen},
        {"micro_batch": micro_batch},
        dp=4 if ep == 4 else 2,
        ep=ep,
    )
    rows = [op for op in ops(low) if op.comms and op.comms[0].axis == "ep"]
    assert [
        sum(op.phase == phase for op in rows) for phase in ("forward", "backward")
    ] == [2 * LAYERS, 2 * LAYERS]
    assert {op.size for op in rows} == {micro_batch * SEQ * chosen * HIDDEN * 2.0}


@pytest.mark.parametrize("way", ["ddp", "ddp-no-overlap"])
@pytest.mark.parametrize("pp", [1, 2])
def test_experts_are_not_averaged_where_they_are_spread(way: str, pp: int) -> None:
    """With ep = dp every rank has experts of its own: the rest is averaged, in every stage of a pipeline."""
    batches = {"microbatches": 2} if pp > 1 else {}
    spread, whole = (
        lowered(EXPERTS, batches, dp=2, pp=pp, ep=ep, data_parallel=way)
        for ep in (2, 1)
    )
    experts = LAYERS * 4 * 3 * HIDDEN * 512
    reduced = [
        sum(volume(low, "dp all_reduce", rank) for rank in range(pp))
        for low in (spread, whole)
    ]
    assert reduced == [2.0 * (whole.parameters - experts), 2.0 * whole.parameters]
