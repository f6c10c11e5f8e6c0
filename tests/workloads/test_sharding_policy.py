"""A way of sharding is a value: this file adds two, and what they send and keep follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.lowered import Lowered
from prestep.workloads.sharding import fsdp
from prestep.workloads.sharding.policy import Part, Policy
from tests.workloads.small import lowered, ops

RANKS = 4


def quantize(part: Part) -> Iterable[Kernel]:
    """Reads a shard as it is stored, and writes a byte for each number."""
    n = part.elements // part.ranks
    yield Kernel("fused", (n,), bytes=part.stored / part.ranks + n)


PLAIN = fsdp.policy(None)
#: ZeRO++'s quantized weights: gathers carry a byte for each parameter.
QUANTIZED = replace(PLAIN, sent=1, copy_in=quantize)
#: No gather beside the backward pass of another unit.
LATE = replace(PLAIN, prefetch="none")


def step(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Lowered:
    """A step of a small model whose shards follow a policy."""
    monkeypatch.setattr(fsdp, "policy", lambda choices: policy)
    return lowered(dp=RANKS, data_parallel="fsdp")


def sent(low: Lowered) -> Counter[tuple[str, float]]:
    """Collectives of a rank by their operation and bytes."""
    return Counter((c.op, c.size) for op in ops(low) for c in op.comms)


def test_what_is_gathered_is_what_the_policy_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A byte instead of two halves every gather, and leaves reductions as they are."""
    plain, quantized = (sent(step(monkeypatch, p)) for p in (PLAIN, QUANTIZED))
    halved = {"all_gather": 0.5, "reduce_scatter": 1.0}
    assert quantized == Counter(
        {(op, halved[op] * size): n for (op, size), n in plain.items()}
    )


def test_shards_do_not_depend_on_how_they_travel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between steps a rank keeps its part of the parameters in 16 bits, in blocks of the allocator's 512 bytes."""
    for policy in (PLAIN, QUANTIZED, LATE):
        low = step(monkeypatch, policy)
        kept = low.memory[0].before["parameters"]
        exact = 2.0 * low.parameters / RANKS
        assert exact <= kept <= exact + 512 * 64


def test_without_a_prefetch_bytes_are_the_same_and_fewer_are_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit gathered beside another's backward pass is memory; its bytes travel in any case."""
    early, late = (step(monkeypatch, p) for p in (PLAIN, LATE))
    assert sent(early) == sent(late)
    assert late.memory[0].peak <= early.memory[0].peak
