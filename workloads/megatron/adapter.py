"""Low-rank adapters beside frozen projections, as NeMo and Megatron Bridge compose them.

A projection's output gets that of two thin products added, in 16 bits whatever the layers' format: the input, with
dropout, times A, times B, scaled. Where the projection's rows are spread over tensor-parallel ranks, so are those of A,
whose output is gathered, and of B. Where its columns are, so are A's, whose output is summed, and B's rows; its output
lies on the ranks by columns, and is brought into the form of the projection's (Megatron Bridge, peft/utils.py,
ParallelLinearAdapter; peft/lora_layers.py, LoRALinear). With sequence parallelism the norm's output is gathered once,
in 16 bits, for the projection and its adapter (return_layernorm_output_gathered).
"""

from __future__ import annotations

from dataclasses import replace

from prestep.workloads.job.adapter import Target
from prestep.workloads.megatron import dtensor
from prestep.workloads.megatron.linear import column_linear, row_linear
from prestep.workloads.megatron.low_rank import (
    Pair,
    added,
    dropped,
    matrices,
    moved,
    product,
    scaled,
)
from prestep.workloads.megatron.shard import Shard, whole
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

PREFIX = "adapter."


def freeze(module: Module) -> None:
    """No weight has a gradient but those of adapters."""
    for p in module.parameters:
        p.requires_grad = PREFIX in p.name


def pair_of(
    module: Module, t: Tape, target: Target, w: Tensor, s: Shard, row: bool
) -> Pair | None:
    """The adapter of a projection, registered with its module; ``row``: the projection's columns are spread."""
    if target not in s.adapter.places:
        return None
    n, k = w.shape
    into, out = matrices(n, k, s, row)
    return _registered(module, t, PREFIX + target, into, out)


def whole_pair_of(
    module: Module, t: Tape, target: Target, w: Tensor, s: Shard
) -> Pair | None:
    """The adapter of a projection that is whole on every rank: both of its matrices are spread by rows, or whole."""
    if target not in s.adapter.places:
        return None
    n, k = w.shape
    own = whole(s) if s.dtensors else s
    into, out = matrices(n // own.group.size, k, own, row=False)
    return _registered(module, t, PREFIX + target, into, out)


def _registered(
    module: Module, t: Tape, name: str, into: tuple[int, ...], out: tuple[int, ...]
) -> Pair:
    return Pair(
        module.add(t, *into, name=f"{name}.linear_in"),
        module.add(t, *out, name=f"{name}.linear_out"),
    )


def adapted_column(
    t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard
) -> Tensor:
    """A projection whose rows are spread, with its adapter if it has one."""
    if s.dtensors:
        return dtensor.column(t, x, w, pair, s)
    if pair is None:
        return column_linear(t, x, w, s)
    if s.gathers:
        x = _whole(t, x, s)
        y = column_linear(t, x, w, _alone(s))
    else:
        y = column_linear(t, x, w, s)
    return joined(t, y, through_column(t, x, pair, s), s)


def adapted_whole(t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard) -> Tensor:
    """A projection that is whole on every rank, with its adapter if it has one; ranks exchange what its matrices make.

    Megatron Bridge takes them for parts of one matrix, whatever tokens each rank has (base_linear_is_parallel).
    """
    y = column_linear(t, x, w, whole(s))
    if pair is None:
        return y
    own = whole(s) if s.dtensors else s
    z = through_column(t, x, pair, own)
    if own.group.size > 1:
        z = moved(t, z, own, "all_gather", "", y.shape)
    return joined(t, y, z, own)


def through_column(t: Tape, x: Tensor, pair: Pair, s: Shard) -> Tensor:
    """What an adapter makes of its input, beside a projection whose rows are spread."""
    z = dropped(t, x, s, "pre")
    if s.group.size > 1 and not s.gathers:
        z = moved(t, z, s, "", "all_reduce", z.shape)
    z = product(t, z, pair.into, s)
    if s.group.size > 1:
        wide = (*z.shape[:-1], s.adapter.rank)
        z = moved(t, z, s, "all_gather", "", wide)
        z = moved(t, z, s, "", "all_reduce", wide)
    return product(t, scaled(t, z, s, "inner"), pair.out, s)


def adapted_row(
    t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard, part: str = "proj"
) -> Tensor:
    """A projection whose columns are spread, with its adapter if it has one; ``part`` as of `row_linear`."""
    if s.dtensors:
        return dtensor.row(t, x, w, pair, s)
    y = row_linear(t, x, w, s, part)
    if pair is None:
        return y
    z = through_row(t, x, pair, s)
    if s.group.size > 1:
        z = _as_output(t, z, y.shape, s)
    return joined(t, y, z, s)


def through_row(t: Tape, x: Tensor, pair: Pair, s: Shard) -> Tensor:
    """What an adapter makes of its input, beside a projection whose columns are spread: some columns of its output."""
    z = product(t, dropped(t, x, s, "pre"), pair.into, s)
    if s.group.size > 1:
        # The sum of all ranks' parts; backward, of B's input gradients.
        z = moved(t, z, s, "all_reduce", "all_reduce", z.shape)
    return product(t, scaled(t, z, s, "inner"), pair.out, s)


def joined(t: Tape, y: Tensor, z: Tensor, s: Shard) -> Tensor:
    """A projection's output and its adapter's."""
    z = dropped(t, scaled(t, z, s, "output"), s, "post")
    return added(t, y, z, s)


def _as_output(t: Tape, z: Tensor, shape: tuple[int, ...], s: Shard) -> Tensor:
    """Columns of an adapter's output to what the projection's has: parts of the sequence, or all of it everywhere."""
    if s.gathers and s.adapter.all_to_all:
        return moved(t, z, s, "all_to_all", "all_to_all", shape)
    # Gathered; of that each rank takes a part of the sequence, and backward gathers the parts' gradients.
    return moved(t, z, s, "all_gather", "all_gather" if s.gathers else "", shape)


def _alone(s: Shard) -> Shard:
    """A projection whose input is here already, and whose gradient is exchanged by whoever brought it."""
    one = Group("tp", s.group.ranks[:1], [s.group.ranks[:1]], 1)
    return replace(s, group=one, sequence=False)


def _whole(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """All parts of the sequence; backward their gradients are summed and each rank gets its part."""
    shape = (x.shape[0] * s.group.size, *x.shape[1:])
    return moved(t, x, s, "all_gather", "reduce_scatter", shape)
