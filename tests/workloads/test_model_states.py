"""Law: parameters, gradients and optimizer state of a rank are the bytes of their types, over the ranks that share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from prestep.sim.graph.opgraph import UPDATE_ON_HOST
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.frameworks import framework as framework_named
from prestep.workloads.frameworks import names
from prestep.workloads.lowered import Lowered
from prestep.workloads.memory.account import Memory
from tests.sample import together

HIDDEN, LAYERS, FFN, VOCAB, DP = 1024, 4, 4096, 32000, 4
#: A Llama of four layers, counted by hand: four square projections and three of the gated feed-forward part, two norms;
#: an embedding, a head and the last norm.
PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN) + (
    2 * VOCAB * HIDDEN + HIDDEN
)
BF16, FP32 = 2, 4


def lowered(
    framework: str,
    way: str,
    sections: Mapping[str, Mapping[str, Any]],
    microbatches: int = 1,
) -> Lowered:
    """A step of four replicas."""
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": DP},
        "model": {
            "kind": "transformer",
            "hidden": HIDDEN,
            "layers": LAYERS,
            "heads": 16,
            "ffn": FFN,
            "vocab": VOCAB,
        },
        "training": {
            "framework": framework,
            "seq_len": 128,
            "micro_batch": 1,
            "global_batch": DP * microbatches,
        },
    }
    own = dict(sections)
    parallel = {"dp": DP, "data_parallel": way} | dict(own.pop("parallel", {}))
    scenario = parse_scenario(tables | {"parallel": parallel} | own, "states")
    return lowered_on(scenario, load_fabric(scenario))


def memory_of(*what: Any, **further: Any) -> Memory:
    """What rank 0 of such a step allocates."""
    return lowered(*what, **further).memory[0]


WIDE = {"pytorch": {"master_weights": True}}
MIXED = {"pytorch": {"master_weights": True, "reduce_dtype": "fp32"}}
NARROW_SUMS = {"megatron": {"main_grads": "bf16"}}
#: Bytes of a parameter, its gradient and its moments (with fp32 weights beside 16-bit ones), and over how many ranks
#: each is spread.
WAYS: list[tuple[str, str, Mapping[str, Any], tuple[float, float, float]]] = [
    ("pytorch-eager", "ddp", {}, (BF16, BF16, 2 * BF16)),
    ("pytorch-eager", "ddp", WIDE, (FP32, FP32, 2 * FP32)),
    ("pytorch-eager", "ddp-no-overlap", WIDE, (FP32, FP32, 2 * FP32)),
    ("pytorch-compiled", "ddp", WIDE, (FP32, FP32, 2 * FP32)),
    ("pytorch-eager", "fsdp", {}, (BF16 / DP, BF16 / DP, 2 * BF16 / DP)),
    ("pytorch-eager", "fsdp", WIDE, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    ("pytorch-eager", "fsdp", MIXED, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    ("pytorch-compiled", "fsdp", MIXED, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    ("pytorch-eager", "zero2", MIXED, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    ("pytorch-eager", "zero3", MIXED, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    (
        "pytorch-eager",
        "fsdp",
        {"pytorch": {"wide_moments": True}},
        (BF16 / DP, BF16 / DP, 2 * FP32 / DP),
    ),
    (
        "pytorch-eager",
        "fsdp",
        {"pytorch": {"master_weights": True, "fsdp": "1"}},
        (FP32 / DP, FP32 / DP, 2 * FP32 / DP),
    ),
    (
        "pytorch-eager",
        "fsdp",
        MIXED | {"parallel": {"fsdp_shards": 2}},
        (FP32 / 2, FP32 / 2, 2 * FP32 / 2),
    ),
    ("deepspeed-eager", "zero1", {}, (BF16, BF16 / DP, 3 * FP32 / DP)),
    ("deepspeed-eager", "zero2", {}, (BF16, BF16 / DP, 3 * FP32 / DP)),
    ("deepspeed-eager", "zero3", {}, (BF16 / DP, BF16 / DP, 3 * FP32 / DP)),
    ("deepspeed", "zero2", {}, (BF16, FP32 / DP, 3 * FP32 / DP)),
    ("deepspeed", "zero3", NARROW_SUMS, (BF16 / DP, BF16 / DP, 3 * FP32 / DP)),
    ("megatron", "ddp", {}, (BF16, FP32, 3 * FP32)),
    ("megatron", "ddp", NARROW_SUMS, (BF16, BF16, 3 * FP32)),
    ("megatron", "zero1", {}, (BF16, FP32, 3 * FP32 / DP)),
    ("megatron", "zero1", NARROW_SUMS, (BF16, BF16, 3 * FP32 / DP)),
    (
        "megatron",
        "zero1",
        {
            "megatron": {
                "main_grads": "bf16",
                "use_precision_aware_optimizer": True,
                "exp_avg_dtype": "bf16",
                "exp_avg_sq_dtype": "bf16",
            }
        },
        # Of the fp32 weight the optimizer keeps the half that the bf16 weight lacks.
        (BF16, BF16, (2 + 2 * BF16) / DP),
    ),
    ("megatron", "fsdp", {}, (BF16 / DP, FP32 / DP, 3 * FP32 / DP)),
    ("megatron", "fsdp", NARROW_SUMS, (BF16 / DP, BF16 / DP, 3 * FP32 / DP)),
    (
        "megatron",
        "fsdp",
        {"megatron": {"fp32_shards": True}},
        (FP32 / DP, FP32 / DP, 2 * FP32 / DP),
    ),
    ("automodel", "fsdp", {}, (BF16 / DP, BF16 / DP, 2 * BF16 / DP)),
    ("automodel", "fsdp", MIXED, (FP32 / DP, FP32 / DP, 2 * FP32 / DP)),
    ("automodel", "zero3", {}, (BF16 / DP, BF16 / DP, 2 * BF16 / DP)),
    (
        "automodel",
        "fsdp",
        {"parallel": {"fsdp_shards": 2}},
        (BF16 / 2, BF16 / 2, 2 * BF16 / 2),
    ),
    ("megatron", "ddp-no-overlap", {}, (BF16, FP32, 3 * FP32)),
    ("megatron", "zero2", {}, (BF16, FP32 / DP, 3 * FP32 / DP)),
    ("megatron", "zero3", {}, (BF16 / DP, FP32 / DP, 3 * FP32 / DP)),
    (
        "megatron",
        "fsdp",
        {"parallel": {"fsdp_shards": 2}},
        (BF16 / 2, FP32 / 2, 3 * FP32 / 2),
    ),
    ("deepspeed", "ddp", {}, (BF16, FP32, 3 * FP32)),
    ("deepspeed", "ddp-no-overlap", {}, (BF16, FP32, 3 * FP32)),
    ("deepspeed", "zero1", {}, (BF16, FP32, 3 * FP32 / DP)),
    ("deepspeed", "zero1", NARROW_SUMS, (BF16, BF16, 3 * FP32 / DP)),
    ("deepspeed", "fsdp", {}, (BF16 / DP, FP32 / DP, 3 * FP32 / DP)),
    (
        "pytorch-eager",
        "fsdp",
        {"pytorch": {"fsdp": "1"}, "parallel": {"fsdp_shards": 2}},
        (BF16 / 2, BF16 / 2, 2 * BF16 / 2),
    ),
    *(
        (framework, way, {}, (BF16, BF16, 2 * BF16))
        for framework in ("pytorch-compiled", "cuda-graph")
        for way in ("ddp", "ddp-no-overlap")
    ),
    *(
        (framework, way, {}, (BF16 / DP, BF16 / DP, 2 * BF16 / DP))
        for framework in ("pytorch-compiled", "cuda-graph")
        for way in ("fsdp", "zero2", "zero3")
    ),
]
#: PyTorch's ZeRO 1 deals out whole tensors: `test_zero1_of_pytorch_deals_whole_tensors`.
DEALT = {
    (name, "zero1") for name in ("pytorch-eager", "pytorch-compiled", "cuda-graph")
}


def test_no_way_is_left_out() -> None:
    """Every value of parallel.data_parallel of every framework has its arithmetic here."""
    ways = {
        (name, way)
        for name in names()
        for way in framework_named(name).data_parallel
        if way != "none"
    }
    assert ways - DEALT == {(framework, way) for framework, way, _, _ in WAYS}


@pytest.mark.parametrize("microbatches", [1, 3])
@together(("framework", "way", "sections", "each"), WAYS)
def test_states_are_the_bytes_of_their_types(
    framework: str,
    way: str,
    sections: Mapping[str, Any],
    each: tuple[float, float, float],
    microbatches: int,
) -> None:
    """However many microbatches there are: sums of gradients take the place of gradients."""
    owners = memory_of(framework, way, sections, microbatches).at_update
    bytes_of = {
        owner: size * PARAMETERS
        for owner, size in zip(
            ("parameters", "gradients", "optimizer"), each, strict=True
        )
    }
    assert {owner: owners[owner] for owner in bytes_of} == pytest.approx(
        bytes_of, rel=1e-3
    )


def test_zero1_of_pytorch_deals_whole_tensors() -> None:
    """The first rank updates the embedding, and what is dealt to it besides."""
    owners = memory_of("pytorch-eager", "zero1", WIDE).at_update
    fair = 2 * FP32 * PARAMETERS / DP
    largest = 2 * FP32 * VOCAB * HIDDEN
    assert largest <= owners["optimizer"] <= fair + largest
    assert owners["parameters"] == owners["gradients"] == FP32 * PARAMETERS


@pytest.mark.parametrize("framework", ["pytorch-eager", "pytorch-compiled"])
def test_ddp_sends_what_it_stores(framework: str) -> None:
    """Gradients of fp32 parameters are reduced in fp32."""
    sent = {}
    for wide in (False, True):
        scenario = parse_scenario(
            {
                "cluster": {"name": "dgx-h100", "gpus": DP},
                "model": {"name": "smollm2-135m"},
                "training": {"framework": framework, "seq_len": 128},
                "parallel": {"dp": DP, "data_parallel": "ddp"},
                "pytorch": {"master_weights": wide},
            },
            "sent",
        )
        graph = lowered_on(scenario, load_fabric(scenario)).graph
        sent[wide] = sum(c.size for c in graph.comms if c.op == "all_reduce")
    assert sent[True] == 2 * sent[False]


@pytest.mark.parametrize(("reduced", "each"), [("bf16", BF16), ("fp32", FP32)])
def test_whole_gradients_wait_in_the_type_of_the_reduction(
    reduced: str, each: int
) -> None:
    """FSDP2 without synchronization: sums of every parameter wait, beside the next microbatch's gradients of one group."""
    sections = {"pytorch": {"master_weights": True, "reduce_dtype": reduced}}
    memory = memory_of("pytorch-eager", "fsdp", sections, microbatches=2)
    most = most_gradients(memory)
    sums, one_group = each * PARAMETERS, BF16 * (2 * VOCAB * HIDDEN + HIDDEN)
    assert sums <= most * 1.001 and most <= 1.001 * (sums + one_group)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_offloaded_gradients_leave_in_every_microbatch(microbatches: int) -> None:
    """What is on the GPU is one group's: whole, in 16 bits, and its reduced shard; the host has all of the rest.

    DeepSpeed's ZeRO-3 partitions and offloads the gradients of each microbatch, as FSDP2 does where it reduces in each.
    """
    sections = {
        "pytorch": {"master_weights": True, "reduce_every_microbatch": True},
        "parallel": {"offload": "parameters"},
    }
    memory = memory_of("pytorch-eager", "fsdp", sections, microbatches)
    one_group = 2 * VOCAB * HIDDEN + HIDDEN
    assert most_gradients(memory) <= 1.001 * (BF16 + FP32 / DP) * one_group
    assert memory.at_update["gradients"] == 0
    kept = FP32 * PARAMETERS / DP
    assert memory.on_host["gradients"] == pytest.approx(kept, rel=1e-3)


def test_the_host_adds_what_it_waited_for() -> None:
    """Each microbatch after the first waits for its copy and passes over sum, gradient and sum in the host's memory."""
    sections = {
        "pytorch": {"master_weights": True, "reduce_every_microbatch": True},
        "parallel": {"offload": "parameters"},
    }
    passed = []
    for microbatches in (1, 2, 3):
        comms = lowered("pytorch-eager", "fsdp", sections, microbatches).graph.comms
        passed.append(sum(c.size for c in comms if c.op == UPDATE_ON_HOST))
    added = 3 * FP32 * PARAMETERS / DP
    assert passed[1] - passed[0] == pytest.approx(added, rel=1e-3)
    assert passed[2] - passed[1] == pytest.approx(added, rel=1e-3)


def most_gradients(memory: Memory) -> float:
    """Most bytes of gradients at once."""
    alive = most = memory.before["gradients"]
    for row in memory.log:
        if row.owner == "gradients":
            alive += row.size
            most = max(most, alive)
    return most
