"""Laws of pipelines under DeepSpeed's engine, and of attention as Megatron-DeepSpeed of 2022 ran it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from prestep.sim.costs import gpu
from prestep.sim.graph.kernel import Kernel
from prestep.sim.predict import step_time
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.megatron.core_attention import rows_of_a_block, softmax_is_fused
from prestep.workloads.megatron.pipeline import one_at_a_time
from prestep.workloads.schedules.runtime import (
    Batch,
    Compute,
    Operation,
    Recv,
    Send,
    Wait,
    operations,
)
from tests.workloads.test_zero import MODEL

RANKS, MICROBATCHES = 4, 6


def scenario(
    framework: str = "deepspeed",
    model: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    parallel: dict[str, int] | None = None,
    cluster: str = "dgx-a100",
) -> Scenario:
    sizes = {"dp": 1, "tp": 2, "pp": 4} | (parallel or {})
    gpus = sizes["dp"] * sizes["tp"] * sizes["pp"]
    return parse_scenario(
        {
            "cluster": {"name": cluster, "gpus": gpus},
            "model": MODEL | (model or {}),
            "training": {
                "framework": framework,
                "seq_len": 1024,
                "micro_batch": 1,
                "global_batch": 8,
            },
            "parallel": {"data_parallel": "zero1"} | sizes,
            "megatron": {"attention": "unfused"} | (megatron or {}),
        },
        "test",
    )


def issued() -> list[tuple[Operation, ...]]:
    """1F1B of all ranks, one transfer at a time."""
    rows = operations("1f1b", RANKS, MICROBATCHES, 1)
    return [one_at_a_time(row) for row in rows]


def test_a_transfer_ends_before_anything_else_begins() -> None:
    """Every transfer is a batch of its own, and the wait for it follows."""
    for row in issued():
        for one, following in pairwise(row):
            if isinstance(one, Batch):
                assert len(one.ops) == 1 and following == Wait(one.handle)


def test_nothing_is_lost_on_the_way() -> None:
    """Computation and transfers are those of 1F1B."""
    for row, whole in zip(
        issued(), operations("1f1b", RANKS, MICROBATCHES, 1), strict=True
    ):
        for kind in (Compute, Send, Recv):
            assert [op for op in _flat(row) if isinstance(op, kind)] == [
                op for op in _flat(whole) if isinstance(op, kind)
            ]


def test_neighbours_exchange_in_the_same_order() -> None:
    """What one stage sends or receives next is what its neighbour does: blocking transfers never wait for each other."""
    rows = [_flat(row) for row in issued()]
    for rank in range(RANKS - 1):
        assert _with(rows[rank], rank + 1) == _with(rows[rank + 1], rank)


def _flat(row: tuple[Any, ...]) -> list[Any]:
    """Transfers and computation, without waits."""
    flat: list[Any] = []
    for op in row:
        flat += op.ops if isinstance(op, Batch) else [op]
    return [op for op in flat if not isinstance(op, Wait)]


def _with(row: list[Any], peer: int) -> list[tuple[str, int, int]]:
    """Keys of a rank's transfers with another, in its order."""
    return [op.key for op in row if isinstance(op, Send | Recv) and op.peer == peer]


def test_transfers_in_turns_take_longer() -> None:
    """A slower network costs a pipeline of DeepSpeed more than one of Megatron, which sends and receives at once."""

    def cost(framework: str) -> float:
        fast, slow = (
            step_time(
                scenario(
                    framework,
                    megatron={"overlap_p2p_comm": False, "p2p_sync": True},
                    parallel={"tp": 8, "pp": 4},
                    cluster=name,
                )
            )
            for name in ("jean-zay-a100", "jean-zay-a100-unbound")
        )
        return slow - fast

    assert cost("deepspeed") > cost("megatron") > 0


@pytest.mark.parametrize(
    ("samples", "heads", "fused"),
    [(2, 8, False), (4, 8, True), (2, 16, True), (4, 14, False), (2, 28, True)],
)
def test_heads_in_place_of_keys(samples: int, heads: int, fused: bool) -> None:
    """Where the check takes a rank's heads for a row's length, few heads want many samples, and eights of 28 pass."""
    batches = samples * heads
    assert softmax_is_fused(batches, 2048, 2048)
    assert softmax_is_fused(batches, 2048, 2048, heads) is fused


def test_shorter_rows_fill_a_block_with_more() -> None:
    """A thread block takes as many rows as its warps do, and a warp is as wide as a row at most."""
    found = [rows_of_a_block(1 << exponent) for exponent in range(13)]
    assert found == sorted(found, reverse=True) and found[0] == 256 and found[-1] == 4


def test_a_check_that_fails_costs_time() -> None:
    """Five kernels in fp32 take longer than one in 16 bits."""
    keys, heads = (
        step_time(scenario(megatron={"fused_softmax_check": check}))
        for check in ("keys", "heads")
    )
    assert heads > keys


def test_alibi_is_a_pass_over_all_scores() -> None:
    """Unfused attention copies ALiBi's bias to where its product adds to it; FlashAttention has no scores to add to."""
    for attention, longer in (("unfused", True), ("flash", False)):
        plain, alibi = (
            step_time(
                scenario(model={"positions": way}, megatron={"attention": attention})
            )
            for way in ("none", "alibi")
        )
        assert (alibi > plain) is longer


def test_batches_of_unaligned_rows_lose_tensor_cores() -> None:
    """On the A100 heads of 150 columns take several times as long as of 152; on GPUs without such a fact less than four."""

    def ratio(name: str) -> float:
        model = gpu.load(name)
        odd, even = (
            model.duration(Kernel("aten bmm", (16, 2048, 2048, width), layout="nt"))
            for width in (150, 152)
        )
        return odd / even

    assert ratio("a100") > 5 > 4 > ratio("h100")
