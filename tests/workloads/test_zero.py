"""Laws of ZeRO around Megatron's layers, and of runs whose host waits for every launch."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import COMM, Chain
from prestep.sim.predict import plan, predict, step_time
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.megatron.core_attention import softmax_is_fused
from tests.executed import executed
from tests.sample import together

MODEL = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 16,
    "ffn": 4096,
    "vocab": 32000,
    "gated": False,
    "activation": "gelu",
    "norm": "layer",
    "bias": True,
}


def scenario(
    way: str,
    dp: int = 4,
    microbatches: int = 2,
    framework: str = "deepspeed",
    training: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    model: dict[str, int] | None = None,
    **parallel: int,
) -> Scenario:
    gpus = dp * parallel.get("tp", 1) * parallel.get("pp", 1)
    return parse_scenario(
        {
            "cluster": {"name": "dgx-a100", "gpus": gpus, "host_factor": 1.0}
            | (cluster or {}),
            "model": MODEL | (model or {}),
            "training": {
                "framework": framework,
                "seq_len": 1024,
                "micro_batch": 1,
                "global_batch": dp * microbatches,
            }
            | (training or {}),
            "parallel": {"dp": dp, "data_parallel": way} | parallel,
            "megatron": {"bucket_size": 5_000_000} | (megatron or {}),
        },
        "test",
    )


def sent(s: Scenario, op: str) -> float:
    """Bytes that one rank's collectives of a kind over data-parallel ranks say they move in a step."""
    graph = executed(s).lowered.graph
    program = graph.programs[0]
    parts = [
        c
        for i, k in enumerate(program.kind)
        if k == COMM
        for c in program.parts[program.payload[i]]
    ]
    return sum(
        graph.comms[c].size
        for c in parts
        if graph.comms[c].op == op and graph.comms[c].axis == "dp"
    )


def peak(s: Scenario) -> float:
    return max(memory.total for memory in predict(s).peak_memory.values())


@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_each_stage_of_zero_holds_less(framework: str) -> None:
    """Replicas hold more than shards of the optimizer, those more than shards of gradients, and of all the least.

    So it is where what is gathered ahead or stays (10^9 parameters), with its gradients, is a small part of the model.
    """
    model = {"hidden": 4096, "ffn": 16384, "layers": 48}
    held = [
        peak(scenario(way, framework=framework, model=model))
        for way in ("ddp", "zero1", "zero2", "zero3")
    ]
    assert held == sorted(held, reverse=True) and len(set(held)) == 4


@pytest.mark.parametrize("bucket", [1_000_000, 7_000_000, 500_000_000])
def test_zero2_sends_the_same_bytes_in_every_microbatch(bucket: int) -> None:
    """Every microbatch reduces all gradients once, in 16 bits, however large the buckets are."""
    parameters = sent(scenario("zero1"), "all_gather") / 2
    for microbatches in (1, 2, 4):
        s = scenario(
            "zero2", microbatches=microbatches, megatron={"bucket_size": bucket}
        )
        expected = pytest.approx(2 * parameters * microbatches, rel=1e-9)
        assert sent(s, "all_reduce") == expected and not sent(s, "reduce_scatter")
        assert sent(s, "all_gather") == pytest.approx(2 * parameters, rel=1e-9)


@pytest.mark.parametrize("sums", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("way", "op"), [("zero2", "all_reduce"), ("zero3", "reduce_scatter")]
)
def test_deepspeed_reduces_the_same_bytes_around_any_layers(
    way: str, op: str, sums: str
) -> None:
    """In 16 bits in every microbatch, whatever gradients add up in, around Megatron's layers and plain modules.

    Beside them only single numbers travel.
    """
    layers = scenario(way, microbatches=3, megatron={"main_grads": sums})
    modules = scenario(way, microbatches=3, framework="deepspeed-eager", megatron={})
    for s in (layers, modules):
        parameters = plan(s).lowered.parameters
        assert sent(s, op) == pytest.approx(2 * 3 * parameters, rel=1e-5)


@pytest.mark.parametrize("way", ["ddp", "zero1"])
def test_a_bucket_has_whole_tensors(way: str) -> None:
    """However small buckets are said to be, as many communications as tensors are enough, of the same bytes."""
    small, large = (
        scenario(way, megatron={"bucket_size": size}) for size in (1, 5_000_000)
    )
    assert sent(large, "all_reduce") > 0
    assert sent(small, "all_reduce") == pytest.approx(
        sent(large, "all_reduce"), rel=1e-6
    )
    comms = plan(small).graph.comms
    reduced = [c for c in comms if c.op == "all_reduce" and c.axis == "dp"]
    assert 10 < len(reduced) <= 4 * 16 + 8  # a layer has at most 16 tensors


def test_zero1_reduces_once_a_step() -> None:
    """Stage 1 sends as much whatever the number of microbatches: all gradients to all ranks, in bf16 runs in fp32.

    Releases before 0.12.5 reduced those of 16 bits to the rank that updates them.
    """
    sizes = {sent(scenario("zero1", microbatches=n), "all_reduce") for n in (1, 4)}
    assert len(sizes) == 1 and sizes.pop() == pytest.approx(
        2 * sent(scenario("zero1"), "all_gather")
    )
    for version, op in (("0.12.5", "all_reduce"), ("0.6", "reduce_scatter")):
        half = scenario(
            "zero1",
            training={"precision": "fp16"},
            megatron={"main_grads": "bf16", "deepspeed_version": version},
        )
        of_gradients = {op: sent(half, op) for op in ("all_reduce", "reduce_scatter")}
        assert {o: n for o, n in of_gradients.items() if n} == {
            op: sent(half, "all_gather")
        }


#: Ranks that share parameters, gradients and states, by the way; DeepSpeed's stages 2 and 3 have a bucket in 16 bits.
SHARED = {"ddp": (1, 1, 1), "zero1": (1, 1, 4), "zero2": (1, 4, 4), "zero3": (4, 4, 4)}


@together("way", SHARED)
@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
@pytest.mark.parametrize("wide", [2, 4])
def test_what_is_held_between_steps_is_arithmetic(
    framework: str, way: str, wide: int
) -> None:
    """Parameters in 16 bits, gradients as they add up, a weight and two moments in fp32, each over who shares it."""
    sums = {"main_grads": "fp32" if wide == 4 else "bf16"}
    low = plan(scenario(way, framework=framework, megatron=sums)).lowered
    (memory,) = low.memory.values()
    sizes = zip(("parameters", "gradients", "optimizer"), (2, wide, 12), strict=True)
    expected = {
        name: size * low.parameters / ranks
        for (name, size), ranks in zip(sizes, SHARED[way], strict=True)
    }
    buckets = way == "zero2" or (way, framework) == ("zero3", "deepspeed")
    expected["buffers"] = 2.0 * 5_000_000 if buckets else 0.0
    if (way, framework) == ("zero3", "deepspeed"):
        # Up to 100,000 elements persist: two norms and the biases of three, one, four and one times the width.
        expected["parameters"] += 2.0 * 1024 * (4 * (4 + 9) + 2)
    held = {name: memory.before.get(name, 0.0) for name in expected}
    assert held == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("way", ["ddp", "zero1", "zero2"])
def test_what_is_reduced_beside_backward_is_not_reduced_again(
    way: str, precision: str
) -> None:
    """overlap_comm sends the same bytes earlier, and gathers of parameters are the optimizer's alone."""
    both = "overlap_grad_reduce", "overlap_param_gather"
    there, beside = (
        scenario(way, training={"precision": precision}, megatron=switches)
        for switches in ({}, dict.fromkeys(both, True))
    )
    for op in ("all_reduce", "reduce_scatter", "all_gather"):
        assert sent(beside, op) == pytest.approx(sent(there, op), rel=1e-12)


@pytest.mark.parametrize("way", ["zero1", "zero2"])
@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_one_replica_has_nothing_to_shard(way: str, framework: str) -> None:
    """With one data-parallel rank every stage is the plain run: same time, same memory."""
    alone, plain = (scenario(w, dp=1, framework=framework) for w in (way, "none"))
    assert step_time(alone) == pytest.approx(step_time(plain), rel=1e-12)
    assert peak(alone) == pytest.approx(peak(plain), rel=1e-12)


def test_zero2_overlapped_is_no_slower_and_holds_another_bucket() -> None:
    """overlap_comm reduces a bucket while the next is filled: not slower, one bucket more."""
    there, beside = (
        scenario("zero2"),
        scenario("zero2", megatron={"overlap_grad_reduce": True}),
    )
    assert step_time(beside) <= step_time(there)
    assert peak(beside) - peak(there) == pytest.approx(2 * 5_000_000, rel=1e-3)


@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_zero2_in_a_pipeline_is_refused(framework: str) -> None:
    """DeepSpeed refuses ZeRO-2 in a pipeline; so does prestep, saying what to write instead."""
    with pytest.raises(InputError) as refused:
        step_time(scenario("zero2", dp=2, pp=2, framework=framework))
    assert "parallel.data_parallel" in str(refused.value) and "zero1" in str(
        refused.value
    )


def test_deepspeed_is_not_faster_than_megatron() -> None:
    """The same layers with gradients added outside of the GEMMs and reduced in buckets one after the other.

    On a quick host: DeepSpeed updates one flat tensor, Megatron a shard of each.
    """
    for precision in ("bf16", "fp16"):
        quick = {"host_factor": 0.25}
        said: dict[str, Any] = {"training": {"precision": precision}, "cluster": quick}
        assert step_time(scenario("zero1", **said)) > step_time(
            scenario("zero1", framework="megatron", **said)
        )


def test_a_host_that_waits_adds_its_time() -> None:
    """With CUDA_LAUNCH_BLOCKING the host's time is all of it in the step: it grows evenly with the host's slowness."""

    def times(way: str, pp: int) -> list[float]:
        return [
            step_time(
                scenario(
                    way,
                    dp=2,
                    pp=pp,
                    megatron={"launch_blocking": True, "bucket_size": 50_000_000},
                    cluster={"host_factor": factor},
                )
            )
            for factor in (1.0, 2.0, 3.0)
        ]

    one, two, three = times("zero2", 1)
    assert two - one == pytest.approx(three - two, rel=1e-2) and two - one > 0.1 * one
    assert step_time(scenario("zero2", dp=2)) < one
    one, two, three = times("zero1", 2)
    assert one < two < three


def test_a_pause_after_every_kernel_lengthens_the_step() -> None:
    """Steps grow with the pause between kernels once the GPU is what bounds them, and never shrink."""
    found = [
        step_time(
            scenario(
                "zero1",
                training={"micro_batch": 8, "global_batch": 64},
                cluster={"kernel_gap": gap},
            )
        )
        for gap in ("0 us", "5 us", "50 us")
    ]
    assert found == sorted(found) and found[2] > found[0] * 1.05


@together(
    ("batches", "columns", "fused"),
    [
        (2, 1024, False),
        (4, 1024, True),
        (14, 2048, False),
        (28, 2048, True),
        (4, 128, False),
        (8, 128, True),
        (4, 8192, False),
        (4, 16, False),
        (6, 1024, False),
    ],
)
def test_the_fused_softmax_takes_whole_blocks(
    batches: int, columns: int, fused: bool
) -> None:
    """Samples times heads of a rank fill blocks of four rows (eight of short ones); rows have 17 to 4096 scores."""
    assert softmax_is_fused(batches, columns, columns) is fused


def test_heads_that_fill_no_block_take_a_kernel_for_each_step() -> None:
    """A sample of 16 heads on eight GPUs is two heads a rank: five kernels for the softmax, forward and backward."""

    def launched(batch: int) -> dict[str, int]:
        said = {"micro_batch": batch, "global_batch": 8}
        s = scenario(
            "none", dp=1, tp=8, training=said, megatron={"attention": "unfused"}
        )
        kernels = executed(s).lowered.graph.kernels
        return {
            k.name: k.graph.operations
            for k in kernels
            if isinstance(k, Chain) and k.name.startswith("layer")
        }

    two, four = launched(1), launched(2)
    assert {name: two[name] - four[name] for name in two} == {
        "layer forward": 4,
        "layer backward": 4,
    }


def test_fused_kernels_last_as_long_under_deepspeed() -> None:
    """Megatron's layers are the same under DeepSpeed: each of their fused kernels takes the time it has in Megatron."""

    def times(framework: str) -> dict[object, float]:
        step = plan(scenario("zero1", framework=framework))
        timed = zip(step.graph.kernels, step.durations, strict=True)
        return {k: float(t) for k, t in timed if getattr(k, "kind", "") == "fused"}

    deepspeed, megatron = times("deepspeed"), times("megatron")
    shared = deepspeed.keys() & megatron.keys()
    assert shared and all(deepspeed[kernel] == megatron[kernel] for kernel in shared)
