"""Operations that are remembered by their shapes give what PyTorch gives. Needs PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from prestep.workloads.capture.record import memo

aten = torch.ops.aten

#: Operations with the shapes of their tensors and what follows them.
CASES: list[tuple[Any, tuple[tuple[int, ...], ...], tuple[Any, ...]]] = [
    (aten.mm.default, ((4, 8), (8, 16)), ()),
    (aten.add.Tensor, ((4, 1, 8), (3, 8)), ()),
    (aten.add_.Tensor, ((4, 8), (1, 8)), ()),
    (aten.mul.Tensor, ((4, 8),), (2.0,)),
    (aten.transpose.int, ((4, 8),), (0, 1)),
    (aten.slice.Tensor, ((4, 8),), (0, 1, 3)),
    (aten.split.Tensor, ((4, 8),), (2,)),
    (aten._unsafe_view.default, ((4, 8),), ([2, 16],)),
    (aten.expand.default, ((1, 8),), ([4, 8],)),
    (aten.native_layer_norm.default, ((4, 8),), ([8], None, None, 1e-5)),
    (aten.sum.dim_IntList, ((4, 8),), ([0],)),
    (aten._to_copy.default, ((4, 8),), ()),
]


def remembered(function: Any, *args: Any) -> tuple[memo.Memo, memo.Entry | None, Any]:
    """The operation done once by PyTorch, and what is kept of it."""
    fake = torch.utils._pytree.tree_leaves(args)[0].fake_mode
    kept = memo.Memo(fake)
    call = memo.call_of(function, args, {})
    with fake:
        results = function(*args)
    entry = kept.keep(call, function, args, {}, results)
    return kept, entry, results


def tensors(fake: FakeTensorMode, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    with fake:
        return [torch.empty(shape) for shape in shapes]


def form(results: Any) -> list[Any]:
    return [
        (t.shape, t.stride(), t.dtype, t.device, t.storage_offset())
        for t in torch.utils._pytree.tree_leaves(results)
        if isinstance(t, torch.Tensor)
    ]


@pytest.mark.parametrize(
    ("function", "shapes", "others"), CASES, ids=[str(case[0]) for case in CASES]
)
def test_a_repeated_operation_gives_what_pytorch_gives(
    function: Any, shapes: Any, others: Any
) -> None:
    """Shapes, strides, types and offsets, and whose memory a result lies in."""
    fake = FakeTensorMode()
    kept, entry, first = remembered(function, *tensors(fake, shapes), *others)
    assert entry is not None
    again = tensors(fake, shapes)
    call = memo.call_of(function, (*again, *others), {})
    assert call is not None and kept.find(call) is entry
    results = kept.results(entry, call.tensors)
    assert form(results) == form(first)
    with fake:
        plain = function(*again, *others)
    shared = [t.untyped_storage()._cdata for t in again]
    lies = [
        [
            t.untyped_storage()._cdata in shared
            for t in torch.utils._pytree.tree_leaves(r)
        ]
        for r in (results, plain)
    ]
    assert lies[0] == lies[1]


def test_a_view_of_a_view_begins_where_its_own_does() -> None:
    """Tensors of one shape at other places of their memory are other calls."""
    fake = FakeTensorMode()
    (whole,) = tensors(fake, ((8, 8),))
    with fake:
        low, high = whole[:4], whole[4:]
    kept, entry, _ = remembered(aten.slice.Tensor, low, 0, 1, 3)
    call = memo.call_of(aten.slice.Tensor, (high, 0, 1, 3), {})
    assert entry is not None and call is not None
    assert kept.find(call) is None


def test_a_tensor_with_itself_is_another_call_than_two_tensors() -> None:
    """An operation in place returns its own operand, which must not be taken for the other one."""
    fake = FakeTensorMode()
    one, other = tensors(fake, ((4,), (4,)))
    kept, entry, _ = remembered(aten.add_.Tensor, one, one)
    call = memo.call_of(aten.add_.Tensor, (one, other), {})
    assert entry is not None and call is not None
    assert kept.find(call) is None


def test_what_is_written_to_is_known() -> None:
    """Values of the operands that an operation writes to are forgotten: of lists, each of them."""
    fake = FakeTensorMode()
    one, other, third = tensors(fake, ((1 << 17,),) * 3)
    _, entry, _ = remembered(aten._foreach_add_.List, [one, other], [third, third])
    assert entry is not None
    assert entry.written == (0, 1) and not entry.valued


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0, None)])
def test_equal_numbers_of_other_types_are_other_calls(values: tuple[Any, Any]) -> None:
    """1, 1.0 and True promote types differently."""
    (tensor,) = tensors(FakeTensorMode(), ((4,),))
    calls = [memo.call_of(aten.mul.Tensor, (tensor, value), {}) for value in values]
    assert calls[0] is not None and calls[1] is not None
    assert calls[0].key != calls[1].key


@pytest.mark.parametrize(
    ("function", "others"),
    [
        (aten.nonzero.default, ()),
        (aten.transpose_.default, (0, 1)),
        (aten.resize_.default, ([16],)),
        (aten._local_scalar_dense.default, ()),
    ],
)
def test_what_depends_on_more_than_shapes_is_not_kept(
    function: Any, others: tuple[Any, ...]
) -> None:
    """Results whose size values decide, and operations that change their operand's own shape."""
    (tensor,) = tensors(FakeTensorMode(), ((4, 8),))
    assert memo.call_of(function, (tensor, *others), {}) is None


def test_an_output_that_was_resized_is_not_kept() -> None:
    """An operation that gave its `out` another shape does more than its results show."""
    fake = FakeTensorMode()
    one, other, out = tensors(fake, ((4, 8), (4, 8), (0,)))
    call = memo.call_of(aten.add.out, (one, other), {"out": out})
    kept = memo.Memo(fake)
    with fake:
        results = aten.add.out(one, other, out=out)
    options = {"out": out}
    assert kept.keep(call, aten.add.out, (one, other), options, results) is None
    assert not kept.entries
