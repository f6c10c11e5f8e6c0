"""Scans over whole sequences under context parallelism: parts of the sequence become parts of the heads, and back.

Every tensor of the projection goes by an all-to-all of its own, in a copy that lies as it is sent; what arrives is
joined, and put in the order of the sequence, which attention's balance had changed. Behind the scan the same backwards
(megatron/core/ssm/mamba_context_parallel.py, pre_conv_ssm and post_conv_ssm; of the gated delta rule
gated_delta_net/common.py, a2a_cp_to_hp, which sends all in one).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from prestep.workloads.megatron.elementwise import pass_over, unsaved
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.models.hybrid import Sizes
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl cp"
# Passes over all that a rank has: what arrived joined, and put in order (_undo_attention_load_balancing).
JOINED, ORDERED = 1, 1
COPIED = 2.0  # bytes moved by a pass for a byte of a tensor: read and written


def spread(own: Sizes, s: Shard) -> Sizes:
    """A rank's heads while it has the whole sequence; where groups of keys are fewer than ranks, each has one whole."""
    ranks = ranks_of(s)
    keys = max(1, own.keys // ranks)
    return Sizes(keys, own.key_dim, own.values // ranks, own.value_dim)


def repeated(own: Sizes, s: Shard) -> int:
    """Columns of all groups of keys as they are sent: a group goes to every rank with heads that read it."""
    return max(own.keys, ranks_of(s)) * own.key_dim


def to_heads(t: Tape, x: Tensor, columns: Sequence[int], s: Shard) -> Tensor:
    """``x`` (part of the sequence, samples, width) as (sequence, samples, part of the columns).

    ``columns``: those of each tensor that is sent by itself, of all heads of this tensor-parallel rank.
    """
    if s.context is None or s.context.size == 1:
        return x
    group = s.context
    rows = prod(x.shape[:-1])
    sizes = [float(rows * count * x.itemsize) for count in columns]
    shape = (x.shape[0] * group.size, *x.shape[1:-1], sum(columns) // group.size)
    return _moved(t, x, shape, sizes, group, JOINED + ORDERED)


def to_sequence(t: Tape, y: Tensor, s: Shard) -> Tensor:
    """``y`` (sequence, samples, part of the columns) as (part of the sequence, samples, columns)."""
    if s.context is None or s.context.size == 1:
        return y
    group = s.context
    shape = (y.shape[0] // group.size, *y.shape[1:-1], y.shape[-1] * group.size)
    return _moved(t, y, shape, [float(y.size)], group, ORDERED)


def ranks_of(s: Shard) -> int:
    """Ranks that have a part of the sequence each."""
    return 1 if s.context is None else s.context.size


def _moved(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    sizes: Sequence[float],
    group: Group,
    passes: int,
) -> Tensor:
    """The same elements elsewhere; their gradients come back the same way."""
    before, itemsize = x.shape, x.itemsize
    _exchange(t, sizes, group, passes)

    def backward(g: Tensor) -> list[Tensor | None]:
        _exchange(t, sizes, group, passes)
        return [t.empty(before, itemsize)]

    return t.apply(t.empty(shape, itemsize), [unsaved(x)], backward)


def _exchange(t: Tape, sizes: Sequence[float], group: Group, passes: int) -> None:
    """Each tensor copied as it is sent, and sent; then so many passes over all of them."""
    for size in sizes:
        pass_over(t, round(size / 2), COPIED * size)
        group.collective(t, "all_to_all", size, STREAM, "functional_collective")
        t.wait(t.record(STREAM))
    total = sum(sizes)
    for _ in range(passes):
        pass_over(t, round(total / 2), COPIED * total)
