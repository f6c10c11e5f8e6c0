"""A way of sharding is a value: this file adds two, and what they send and keep follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.lowered import Lowered
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding import fsdp
from prestep.workloads.sharding.policy import Mesh, Part, Policy
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


def test_recorded_copies_of_shards_are_those_of_the_policy() -> None:
    """A gather's copies in and out and a reduction's, as `torch.ops.fsdp` is called: every byte read and written once."""
    one, other, width = 6, 2, 2.0
    count = one + other
    full = width * RANKS * count
    part = Part(_mesh(), RANKS * count, 0, full, full, full, full, full, full)
    shards = tuple(Operand("bf16", (n,)) for n in (one, other))
    whole = tuple(Operand("bf16", (RANKS * n,)) for n in (one, other))
    lines = tuple(Operand("bf16", (RANKS, n)) for n in (one, other))
    buffer, rows = (Operand("bf16", s) for s in ((RANKS * count,), (RANKS, count)))
    sizes = (one, other)
    recorded = (
        _asked("all_gather_copy_in", shards, buffer, sizes, count, 0),
        _asked("split_with_sizes_copy", rows, sizes, 1, out=lines),
        _asked("chunk_cat", whole, 0, RANKS, out=rows),
    )
    written = (PLAIN.copy_in(part), PLAIN.copy_out(part), PLAIN.pack(part, False))
    assert list(map(kernels_of, recorded)) == list(map(tuple, written))
    moved = [launched[-1].bytes for launched in map(kernels_of, recorded)]
    assert moved == [2 * width * count, 2 * full, 2 * full]


def _mesh() -> Mesh:
    ranks = tuple(range(RANKS))
    return Mesh(Group("dp", ranks, [ranks], RANKS))


def _asked(name: str, *arguments: Argument, **options: Argument) -> Operation:
    return Operation(f"fsdp.{name}.default", arguments, tuple(options.items()))
