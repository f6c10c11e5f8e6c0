"""What an operation returns, derived from its operands: neither traces nor measured cases say it."""

from __future__ import annotations

from collections.abc import Callable

from prestep.workloads.operation import Argument, Operand, Operation, words
from prestep.workloads.operators import pointwise, reductions
from prestep.workloads.operators.tensors import (
    argument,
    base,
    dense,
    first,
    integers,
    strides_of,
    tensor,
)

#: Types in the order in which a mix of them becomes the later one.
PROMOTED = words("bool uint8 int8 int16 int32 int64 bf16 fp16 fp32 fp64 complex64")
BOOLEAN = frozenset(
    words(
        "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite all any"
    )
)
#: PyTorch's numbers of element types, as traces have them.
SCALAR_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "fp16",
    6: "fp32",
    7: "fp64",
    9: "complex64",
    11: "bool",
    15: "bf16",
}
TYPE_NAMES = {
    "float32": "fp32",
    "float64": "fp64",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
    "uint8": "uint8",
}


def results_of(operation: Operation) -> tuple[Operand, ...]:
    """Results of the operations whose time depends on them; () of others."""
    name = base(operation)
    if not operation.operands:
        return _made(operation)
    if name.startswith("_foreach"):
        return _of_list(operation)
    if name.endswith("_"):
        return (first(operation),)
    rule = RULES.get(name)
    return rule(operation) if rule is not None else ()


def _of_list(operation: Operation) -> tuple[Operand, ...]:
    """Lists changed in place return nothing; a norm is a number for each tensor."""
    tensors = argument(operation, 0)
    if base(operation).endswith("_") or not isinstance(tensors, tuple):
        return ()
    own = tuple(each for each in tensors if isinstance(each, Operand))
    if base(operation) == "_foreach_norm":
        return tuple(Operand(each.dtype, ()) for each in own)
    return own


def _made(operation: Operation) -> tuple[Operand, ...]:
    """zeros, full, arange: a shape among the arguments."""
    name = base(operation)
    numbers = integers(argument(operation, 0))
    if name == "arange":
        ends = [v for v in operation.arguments[:2] if isinstance(v, int)]
        return (Operand("int64", (max(ends, default=1),)),)
    dtype = _type(argument(operation, 1), "fp32")
    return (Operand(dtype, numbers),)


def _type(value: Argument, other: str) -> str:
    if isinstance(value, str):
        return TYPE_NAMES.get(value, other)
    if isinstance(value, int) and not isinstance(value, bool):
        return SCALAR_TYPES.get(value, other)
    return other


def _broadcast(operands: tuple[Operand, ...]) -> tuple[int, ...]:
    rank = max(len(each.shape) for each in operands)
    padded = [(1,) * (rank - len(each.shape)) + each.shape for each in operands]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def promoted(operands: tuple[Operand, ...]) -> str:
    """The type of a result of several: that of tensors with dimensions before that of scalars."""
    ranked = [each.dtype for each in operands if each.shape] or [
        each.dtype for each in operands
    ]
    return max(ranked, key=lambda d: PROMOTED.index(d) if d in PROMOTED else 0)


def _elementwise(operation: Operation) -> tuple[Operand, ...]:
    operands = operation.operands
    shape = _broadcast(operands)
    dtype = "bool" if base(operation) in BOOLEAN else promoted(operands)
    same = next((e for e in operands if e.shape == shape and dense(e)), None)
    result = Operand(dtype, shape, same.strides if same else ())
    if base(operation) == "native_dropout":
        return (result, Operand("bool", shape))
    return (result,)


def _like(operation: Operation) -> tuple[Operand, ...]:
    source = first(operation)
    return (
        Operand(source.dtype, source.shape, source.strides if dense(source) else ()),
    )


def _cast(operation: Operation) -> tuple[Operand, ...]:
    source = first(operation)
    packed = not dense(source) or "contiguous_format" in operation.arguments
    strides = () if packed else source.strides
    return (
        Operand(_type(argument(operation, 1), source.dtype), source.shape, strides),
    )


def _clone(operation: Operation) -> tuple[Operand, ...]:
    """In the format of the source (none or 1: preserve) or contiguous (0); channels last is 2."""
    source = first(operation)
    how = argument(operation, 1)
    if how in (0, "contiguous_format"):
        return (Operand(source.dtype, source.shape),)
    if how in (2, "channels_last") and len(source.shape) == 4:
        _, c, h, w = source.shape
        return (Operand(source.dtype, source.shape, (c * h * w, 1, w * c, c)),)
    return _like(operation)


def _reduced(operation: Operation) -> tuple[Operand, ...]:
    whole = first(operation)
    rank = len(whole.shape)
    place = reductions.DIMENSIONS.get(base(operation), 1)
    given = {at % rank for at in integers(argument(operation, place)) if rank}
    shape = tuple(
        size for at, size in enumerate(whole.shape) if given and at not in given
    )
    dtype = "bool" if base(operation) in BOOLEAN else whole.dtype
    wanted = [v for v in operation.arguments[2:] if isinstance(v, str)]
    result = Operand(_type(wanted[-1] if wanted else None, dtype), shape)
    both = base(operation) in ("max", "min") and given
    return (result, Operand("int64", shape)) if both else (result,)


def _product(operation: Operation) -> tuple[Operand, ...]:
    at = 1 if base(operation) in ("addmm", "baddbmm") else 0
    left, right = tensor(operation, at), tensor(operation, at + 1)
    if left is None or right is None:
        return ()
    wanted = [v for v in operation.arguments[2:] if isinstance(v, str)]
    own = "bf16" if left.dtype.startswith("fp8") else left.dtype
    dtype = _type(wanted[-1] if wanted else None, own)
    return (Operand(dtype, (*left.shape[:-1], right.shape[-1])),)


def _joined(operation: Operation) -> tuple[Operand, ...]:
    parts = operation.operands
    return (Operand(parts[0].dtype, (sum(part.elements for part in parts),)),)


def _looked_up(operation: Operation) -> tuple[Operand, ...]:
    table, indices = operation.operands[:2]
    return (Operand(table.dtype, (*indices.shape, table.shape[-1])),)


def _sliced_back(operation: Operation) -> tuple[Operand, ...]:
    return (Operand(first(operation).dtype, integers(argument(operation, 1))),)


def _padded(operation: Operation) -> tuple[Operand, ...]:
    source = first(operation)
    pads = integers(argument(operation, 1))
    shape = list(source.shape)
    for at, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=False)):
        shape[-1 - at] += before + after
    return (Operand(source.dtype, tuple(shape)),)


def _gathered(operation: Operation) -> tuple[Operand, ...]:
    indices = [each for each in operation.operands if each.dtype.startswith("int")]
    shape = indices[-1].shape if indices else first(operation).shape
    return (Operand(first(operation).dtype, shape),)


def _indexed(operation: Operation) -> tuple[Operand, ...]:
    source, *indices = operation.operands
    if not indices:  # a list that the trace does not show: of whole rows
        return (Operand(source.dtype, source.shape[:1]),)
    if indices[0].dtype == "bool":
        return (Operand(source.dtype, (source.shape[0] // 2, *source.shape[1:])),)
    rest = source.shape[len(indices) :] if len(indices) > 1 else source.shape[1:]
    return (Operand(source.dtype, (*_broadcast(tuple(indices)), *rest)),)


def _filtered(operation: Operation) -> tuple[Operand, ...]:
    """A convolution's or pool's result: sides by kernel, stride, padding, dilation."""
    image, weight = tensor(operation, 0), tensor(operation, 1)
    if image is None or weight is None:
        return ()
    if argument(operation, 6) is True:
        return _filtered_back(operation, image, weight)
    stride, padding, dilation = (
        integers(argument(operation, at)) or (fallback,)
        for at, fallback in ((3, 1), (4, 0), (5, 1))
    )
    sides = [
        (
            size
            + 2 * padding[i % len(padding)]
            - dilation[i % len(dilation)] * (kernel - 1)
            - 1
        )
        // stride[i % len(stride)]
        + 1
        for i, (size, kernel) in enumerate(
            zip(image.shape[2:], weight.shape[2:], strict=True)
        )
    ]
    shape = (image.shape[0], weight.shape[0], *sides)
    return (Operand(image.dtype, shape, _as(image, shape)),)


def _filtered_back(
    operation: Operation, image: Operand, weight: Operand
) -> tuple[Operand, ...]:
    """A transposed convolution's result: the picture that a convolution would have come from."""
    stride, padding = (integers(argument(operation, at)) for at in (3, 4))
    sides = [
        (size - 1) * stride[i] - 2 * padding[i] + weight.shape[2 + i]
        for i, size in enumerate(image.shape[2:])
    ]
    groups = (integers(argument(operation, 8)) or (1,))[0]
    shape = (image.shape[0], weight.shape[1] * groups, *sides)
    return (Operand(image.dtype, shape, _as(image, shape)),)


def _transformed(operation: Operation) -> tuple[Operand, ...]:
    """Fourier transforms: of real numbers half of the last dimension, and back."""
    source, numbers = first(operation), _numbers(operation)
    *lead, last = source.shape
    if base(operation) == "_fft_r2c":
        return (Operand("complex64", (*lead, last // 2 + 1)),)
    if base(operation) == "_fft_c2r":
        return (Operand("fp32", (*lead, numbers[-1])),)
    return _like(operation)


def _bagged(operation: Operation) -> tuple[Operand, ...]:
    table, _, offsets = operation.operands[:3]
    return (Operand(table.dtype, (offsets.elements, table.shape[-1])),)


def _as(image: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of another image in the memory format of this one."""
    if len(shape) != 4 or strides_of(image)[1] != 1 or image.shape[1] == 1:
        return ()
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)


def _pooled(operation: Operation) -> tuple[Operand, ...]:
    image = first(operation)
    if len(image.shape) != 4:
        return ()
    n, c, h, w = image.shape
    stride = (
        integers(argument(operation, 2)) or integers(argument(operation, 1)) or (1,)
    )
    shape = (n, c, h // stride[0], w // stride[-1])
    return (Operand(image.dtype, shape, _as(image, shape)),)


def _pooled_back(operation: Operation) -> tuple[Operand, ...]:
    return (operation.operands[1],)


def _resampled(operation: Operation) -> tuple[Operand, ...]:
    """Pictures of the sides that the text has after them."""
    image = first(operation)
    height, width = _numbers(operation)[:2]
    shape = (*image.shape[:2], height, width)
    return (Operand(image.dtype, shape, _as(image, shape)),)


def _resampled_back(operation: Operation) -> tuple[Operand, ...]:
    """Gradients of the pictures before: their sizes come after the two sides of the larger ones."""
    gradient = first(operation)
    shape = _numbers(operation)[2:6]
    return (Operand(gradient.dtype, shape, _as(gradient, shape)),)


def _numbers(operation: Operation) -> tuple[int, ...]:
    """The whole numbers of a text, lists of which it has in a row."""
    return tuple(v for v in operation.arguments if type(v) is int)


def _repeated(operation: Operation) -> tuple[Operand, ...]:
    source = first(operation)
    times = integers(argument(operation, 1))
    if base(operation) != "repeat" or len(times) < len(source.shape):
        return (Operand(source.dtype, source.shape),)
    shape = tuple(a * b for a, b in zip(times, source.shape, strict=False))
    return (Operand(source.dtype, shape),)


def _gradients(operation: Operation) -> tuple[Operand, ...]:
    """Of layers: gradients like the second tensor."""
    return (operation.operands[min(1, len(operation.operands) - 1)],)


def _attended(operation: Operation) -> tuple[Operand, ...]:
    backward = base(operation).endswith("_backward")
    return operation.operands[1:4] if backward else (operation.operands[0],)


Rule = Callable[[Operation], tuple[Operand, ...]]
RULES: dict[str, Rule] = {
    **dict.fromkeys(pointwise.NAMES, _elementwise),
    "masked_fill": _elementwise,
    **dict.fromkeys(reductions.NAMES, _reduced),
    **dict.fromkeys(("zeros_like", "full_like", "new_zeros", "scalar_tensor"), _like),
    "cumsum": _like,
    "_to_copy": _cast,
    "clone": _clone,
    **dict.fromkeys(
        ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm", "_grouped_mm"), _product
    ),
    "cat": _joined,
    "stack": _joined,
    "embedding": _looked_up,
    "slice_backward": _sliced_back,
    "select_backward": _sliced_back,
    "constant_pad_nd": _padded,
    "gather": _gathered,
    "index_select": lambda o: (
        Operand(o.operands[0].dtype, (*o.operands[-1].shape, *o.operands[0].shape[1:])),
    ),
    "index": _indexed,
    "index_put": _like,
    "convolution": _filtered,
    "_embedding_bag": _bagged,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _transformed),
    "max_pool2d_with_indices": _pooled,
    "avg_pool2d": _pooled,
    "max_pool2d_with_indices_backward": _pooled_back,
    "avg_pool2d_backward": _pooled_back,
    "upsample_nearest2d": _resampled,
    "upsample_bilinear2d": _resampled,
    "upsample_nearest2d_backward": _resampled_back,
    "upsample_bilinear2d_backward": _resampled_back,
    **dict.fromkeys(
        ("repeat", "roll", "flip", "tril", "triu", "pixel_shuffle", "pixel_unshuffle"),
        _repeated,
    ),
    **dict.fromkeys(
        ("_softmax", "_safe_softmax", "_log_softmax", "_softmax_backward_data"), _like
    ),
    "_log_softmax_backward_data": _like,
    "native_layer_norm": _like,
    "_fused_rms_norm": _like,
    "native_batch_norm": _like,
    "batch_norm_elemt": _like,
    "batch_norm_backward_elemt": _like,
    "cudnn_batch_norm": _like,
    "native_group_norm": _like,
    **dict.fromkeys(
        (
            "native_layer_norm_backward",
            "_fused_rms_norm_backward",
            "native_batch_norm_backward",
            "cudnn_batch_norm_backward",
            "native_group_norm_backward",
            "convolution_backward",
        ),
        _gradients,
    ),
    **dict.fromkeys(
        (
            f"_scaled_dot_product_{backend}_attention{way}"
            for backend in ("cudnn", "flash", "efficient")
            for way in ("", "_backward")
        ),
        _attended,
    ),
}
