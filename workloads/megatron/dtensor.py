"""Projections spread over ranks as PyTorch's DTensors, with adapters beside them: how NeMo Automodel composes both.

Rules of nemo_automodel/components (distributed/parallel_styles.py, _peft/lora.py) and of torch.distributed.tensor:

* A column's input is whole on every rank. The gradients that the projection and its adapter give it are added first,
  and summed over ranks once. The adapter's first matrix is spread by rows, its thin output gathered.
* A row's output and its adapter's are each rank's part of a sum, added first, and summed over ranks once. Between the
  adapter's matrices the thin value is reduce-scattered.
* Functional collectives that reduce work on a copy of their input.
"""

from __future__ import annotations

from prestep.workloads.megatron.linear import column_linear, row_linear
from prestep.workloads.megatron.low_rank import (
    Pair,
    added,
    dropped,
    moved,
    on_host,
    product,
    scaled,
)
from prestep.workloads.megatron.shard import Shard, whole
from prestep.workloads.torch.tape import Tape, Tensor


def column(t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard) -> Tensor:
    """A projection whose weight's rows are spread, with its adapter if it has one."""
    own = whole(s)
    x = _entered(t, x, s)
    y = column_linear(t, x, w, own)
    if pair is None:
        return y
    z = product(t, dropped(t, x, s, "pre"), pair.into, s)
    thin = (*z.shape[:-1], s.adapter.rank)
    z = moved(t, z, s, "all_gather", "reduce_scatter", thin)
    z = product(t, scaled(t, z, s, "inner"), pair.out, s)
    z = dropped(t, scaled(t, z, s, "output"), s, "post")
    return added(t, y, z, s)


def row(t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard) -> Tensor:
    """A projection whose weight's columns are spread, with its adapter if it has one."""
    own = whole(s)
    on_host(t, s, "dtensor_linear")
    y = row_linear(t, x, w, own)
    if pair is not None:
        z = product(t, dropped(t, x, s, "pre"), pair.into, s)
        thin = (*z.shape[:-1], max(1, z.shape[-1] // s.group.size))
        z = scaled(t, z, s, "inner")
        z = moved(t, z, s, "reduce_scatter", "all_gather", thin)
        z = product(t, z, pair.out, s)
        z = dropped(t, scaled(t, z, s, "output"), s, "post")
        y = added(t, y, z, s)
    if s.gathers:
        part = (y.shape[0] // s.group.size, *y.shape[1:])
        return moved(t, y, s, "reduce_scatter", "all_gather", part)
    return moved(t, y, s, "all_reduce", "", y.shape)


def _entered(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """The whole input on every rank; its gradient is summed over them."""
    on_host(t, s, "dtensor_linear")
    if s.gathers:
        full = (x.shape[0] * s.group.size, *x.shape[1:])
        return moved(t, x, s, "all_gather", "reduce_scatter", full)
    return moved(t, x, s, "", "all_reduce", x.shape)
