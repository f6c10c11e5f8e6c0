"""Sparse tensors on the device: their layout and how many entries they have, which PyTorch's fake tensors lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
#: Values and indices, which are all that lies in memory, by layout: by coordinates, by rows, by columns.
PARTS = {
    torch.sparse_coo: ("_values", "_indices"),
    torch.sparse_csr: ("values", "col_indices", "crow_indices"),
    torch.sparse_csc: ("values", "row_indices", "ccol_indices"),
}
#: Operators whose results share the memory of their operand.
VIEWS = {aten.detach.default, aten.alias.default, aten._coalesced_.default}
SUMS = {aten.add.Tensor, aten.sub.Tensor, aten.cat.default}
PRODUCTS = {aten.mm.default, aten._sparse_sparse_matmul.default}


def is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout in PARTS


def parts(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values and indices of a sparse tensor."""
    with _disable_current_modes():
        return tuple(getattr(value, name)() for name in PARTS[value.layout])


def faked(fake: FakeTensorMode, value: torch.Tensor, device: torch.device) -> Any:
    """A fake tensor with as many entries as a real sparse one."""
    dims = value.sparse_dim() if _by_place(value) else 2
    return _made(fake, value, value._nnz(), device, dims)


def with_entries(
    fake: FakeTensorMode,
    function: Any,
    operands: list[torch.Tensor],
    result: Any,
    assumed: Counter[str],
) -> Any:
    """A sparse result with the entries that it has on a GPU; those that have them, and dense ones, as they are."""
    has_value = getattr(result, "_value", None) is not None
    if not is_sparse(result) or has_value or any(result is each for each in operands):
        return result
    sparse = list(filter(is_sparse, operands))
    if not sparse and result._nnz():
        return result  # made of values and indices
    memory = parts(sparse[0]) if function in VIEWS else ()
    count, words = _entries(function, operands, result)
    if words:
        assumed[f"size of {function._schema.name.replace('::', '.')}: {words}"] += 1
    like = [each for each in sparse if each.shape == result.shape]
    dims = like[-1].sparse_dim() if like and _by_place(like[-1]) else result.dim()
    return _made(fake, result, count, result.fake_device, dims, memory)


def _by_place(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.sparse_coo


def _entries(
    function: Any, operands: list[torch.Tensor], result: torch.Tensor
) -> tuple[int, str]:
    """Number of entries of a result, and the assumption behind it: the operand's number where no rule says more."""
    counts = [each._nnz() for each in operands if is_sparse(each)]
    dense = result.dense_dim() if _by_place(result) else 0
    room = prod(result.shape[: result.dim() - dense])
    if not counts:
        return max(1, room // 2), "half of the elements"
    if function in PRODUCTS:
        # Every entry meets a row's share of the other's.
        met = prod(counts) / max(1, operands[0].shape[1])
        return max(1, min(room, round(met))), "entries spread evenly"
    return min(room, sum(counts) if function in SUMS else counts[-1]), ""


def _made(
    fake: FakeTensorMode,
    like: torch.Tensor,
    count: int,
    device: torch.device,
    dims: int,
    memory: Iterable[Any] = (),
) -> Any:
    """A fake tensor of the layout, shape and type of another, with new entries or those in ``memory``."""
    with _disable_current_modes(), torch.sparse.check_sparse_tensor_invariants(False):
        shape, layout = tuple(like.shape), like.layout
        if _by_place(like):
            sizes: tuple[Any, ...] = ((count, *shape[dims:]), (dims, count))
        else:
            sizes = (count,), (count,), (shape[layout == torch.sparse_csc] + 1,)
        values, places, *lines = [*map(_content, memory)] or [
            torch.empty(
                size, dtype=like.dtype if each == 0 else torch.int64, device="meta"
            )
            for each, size in enumerate(sizes)
        ]
        if _by_place(like):
            once = like.is_coalesced()
            made = torch.sparse_coo_tensor(places, values, shape, is_coalesced=once)
        else:
            made = torch.sparse_compressed_tensor(
                *lines, places, values, shape, layout=layout
            )
        return FakeTensor(fake, made, device)


def _content(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor without data inside a fake tensor, in the same memory."""
    inside = torch.empty((0,), dtype=tensor.dtype, device="meta")
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return inside.set_(tensor.untyped_storage(), *place)
