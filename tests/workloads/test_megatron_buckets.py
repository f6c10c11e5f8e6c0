"""Megatron's buckets: what fills them, and what is reduced last."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Chain
from prestep.sim.predict import step_time
from tests.executed import executed
from tests.workloads.test_megatron import scenario
from tests.workloads.test_megatron_overlap import OVERLAP, sharded

ALONE = {"dp": 4, "pp": 1, "vpp": 1, "schedule": "1f1b"}
MILLION = 1_000_000
TABLE = 2048 * 8192  # parameters of the embedding, and of the head


def sizes(op: str, **megatron: Any) -> list[float]:
    """Bytes of a data-parallel operation's runs in the order in which they are issued, one pipeline stage."""
    asked = OVERLAP | {"main_grads": "bf16"} | megatron
    graph = executed(sharded(asked, **ALONE)).lowered.graph
    program = graph.programs[0]
    issued = [part for parts in program.parts for part in parts]
    comms = [graph.comms[part] for part in issued]
    return [c.size for c in comms if c.axis == "dp" and c.op == op]


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("millions", [0.00005, 10, 60, 300, 10_000])
def test_buckets_of_any_size_hold_every_parameter_once(
    millions: float, fp8: bool
) -> None:
    """Reduced and gathered bytes do not depend on the size of a bucket."""
    switches = {"fp8_param_gather": fp8, "bucket_size": int(millions * MILLION)}
    for op in ("reduce_scatter", "all_gather"):
        whole = sum(sizes(op, fp8_param_gather=fp8))
        assert sum(sizes(op, **switches)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("millions", [10, 60, 300])
def test_all_but_the_last_bucket_are_full(millions: int) -> None:
    """A bucket closes with the parameter that brings it to its size; what is left over is reduced last."""
    *full, left = sizes("reduce_scatter", bucket_size=millions * MILLION)
    assert full
    assert min(full) >= 2 * millions * MILLION
    assert left > 0


def test_the_head_shares_a_bucket_with_the_last_layers() -> None:
    """In 16 bits all parameters have one buffer: a bucket larger than the head takes layers too."""
    first, *_ = sizes("reduce_scatter", bucket_size=2 * TABLE)
    assert first > 2 * 2 * TABLE


def test_parameters_in_16_bits_wait_for_the_first_layers() -> None:
    """Beside layers in 8 bits, embedding and head are in the bucket that is reduced last and gathered first."""
    switches = {"fp8_param_gather": True, "bucket_size": 60 * MILLION}
    reduced = sizes("reduce_scatter", **switches)
    gathered = sizes("all_gather", **switches)
    tables = 2 * 2 * TABLE  # both, in 16 bits
    assert reduced[-1] >= tables
    assert gathered[0] >= tables
    halves = [size / 2 for size in reduced[-2::-1]]
    assert gathered[1:] == pytest.approx(halves, rel=1e-12)


def backward_of(**megatron: Any) -> list[int]:
    """Kinds of what is issued in the backward pass of a rank with a bucket for each parameter."""
    asked = OVERLAP | {"main_grads": "bf16", "bucket_size": 1} | megatron
    program = executed(sharded(asked, **ALONE)).lowered.graph.programs[0]
    return program.kind[program.phase == 1].tolist()


def test_a_bucket_is_reduced_as_soon_as_its_gradients_are_there() -> None:
    """Also within a layer: between the reductions of its parameters it computes."""
    issued = [kind for kind in backward_of() if kind != SYNC]
    pairs = list(pairwise(issued))
    layers = 2 * sum(pair == (KERNEL, COMM) for pair in pairs)
    assert layers >= sum(pair == (COMM, COMM) for pair in pairs)
    assert layers > 8


def test_the_host_reads_a_norm_before_each_reduction() -> None:
    """With a check of gradients it waits once a bucket, and the step takes longer (check_grads)."""
    plain, checked = backward_of(), backward_of(check_for_nan_in_grad=True)
    assert not plain.count(SYNC)
    assert checked.count(SYNC) == checked.count(COMM) == plain.count(COMM) > 8
    asked = OVERLAP | {"bucket_size": 1}
    times = [
        step_time(sharded(asked | check, **ALONE))
        for check in ({}, {"check_for_nan_in_grad": True})
    ]
    assert times[0] < times[1]


def casts(batch: int = 8, **changes: Any) -> float:
    """Bytes that a rank moves in forward passes outside of layers: the casts of weights."""
    asked = OVERLAP | {"fp8_transposes": False} | changes
    training = {"precision": "fp8", "global_batch": batch}
    parallel = ALONE | {"data_parallel": "zero1"}
    cluster = {"name": "dgx-h100", "gpus": 4}
    graph = executed(scenario(parallel, training, asked, cluster)).lowered.graph
    program = graph.programs[0]
    at = (program.kind == KERNEL) & (program.phase == 0)
    issued = [graph.kernels[k] for k in program.payload[at]]
    return sum(
        k.bytes for k in issued if not isinstance(k, Chain) and k.kind == "fused"
    )


def test_mxfp8_is_gathered_in_16_bits_and_cast_by_every_rank() -> None:
    """Blocks along rows are no blocks along columns: what is gathered is what both are made of."""
    mx = {"fp8_param_gather": True, "fp8_scaling": "mx"}
    assert sum(sizes("all_gather", **mx)) == sum(sizes("all_gather"))
    assert casts(**mx) > 0 == casts(fp8_param_gather=True)


def test_weights_are_cast_once_a_step() -> None:
    """Later microbatches multiply with what the first one has cast."""
    assert casts(batch=4) == casts(batch=16) > 0


def test_chunks_beyond_the_first_are_one_bucket() -> None:
    """Other pipeline ranks have time: whatever the size asked for, each of their chunks is reduced at once."""
    graph = executed(
        sharded(OVERLAP | {"bucket_size": 1}, vpp=1, schedule="1f1b")
    ).lowered.graph
    last = graph.programs[-1]
    comms = [graph.comms[part] for parts in last.parts for part in parts]
    reductions = [c for c in comms if c.axis == "dp" and c.op == "reduce_scatter"]
    assert len(reductions) == 1


def gathers(**training: Any) -> list[float]:
    """Bytes of the tensor-parallel gathers of a layer, forward and backward."""
    megatron = training.pop("megatron", {})
    parallel = {"tp": 4, "sequence_parallel": True}
    batch = {"global_batch": 1, **training}
    cluster = {"name": "dgx-b200", "gpus": 4}
    graph = executed(scenario(parallel, batch, megatron, cluster)).lowered.graph
    found: list[float] = []
    for kernel in graph.kernels:
        if isinstance(kernel, Chain) and "layer" in kernel.name and not kernel.tail:
            comms = kernel.graph.comms
            found += [c.size for c in comms if (c.axis, c.op) == ("tp", "all_gather")]
    return found


@pytest.mark.parametrize(
    ("precision", "scaling", "once"),
    [("nvfp4", "delayed", 1 / 2 + 1 / 16), ("fp8", "mx", 1 + 1 / 32)],
)
def test_operands_in_blocks_travel_once_for_each_reading(
    precision: str, scaling: str, once: float
) -> None:
    """Forward by rows, a gradient by rows and by columns; with one scale for a tensor a byte serves both."""
    plain = gathers(precision="fp8", megatron={"fp8_scaling": "delayed"})
    blocks = gathers(precision=precision, megatron={"fp8_scaling": scaling})
    assert len(blocks) == len(plain) > 0
    ratios = {round(b / p, 6) for b, p in zip(blocks, plain, strict=True)}
    assert ratios == {round(once, 6), round(2 * once, 6)}
