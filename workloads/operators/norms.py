"""Normalisation over rows (layer, RMS) and over channels (batch, group)."""

from __future__ import annotations

from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operation, words
from prestep.workloads.operators.copies import packed
from prestep.workloads.operators.tensors import (
    argument,
    base,
    first,
    integers,
    launched,
    memory_format,
    tensor,
)

#: Place of the mask that says which gradients are wanted: of the input, then of the weights.
OUTPUT_MASK = {"native_layer_norm_backward": 7, "_fused_rms_norm_backward": 5}
#: Their sixth argument says whether they train, with statistics of their own, or take those of the past.
BY_STATISTICS = ("native_batch_norm", "cudnn_batch_norm")


def _over_rows(operation: Operation, at: int, layout: str = "") -> tuple[Kernel, ...]:
    """Rows next to each other, copied so first where they are not: the tensors before the normalized shape."""
    whole = first(operation)
    width = prod(integers(argument(operation, at))) or whole.shape[-1]
    shape = whole.elements // max(1, width), width
    copies = packed(operation, *range(at))
    return *copies, *launched(
        operation, shape, layout, whole.dtype, size=_bytes(operation)
    )


def _bytes(operation: Operation) -> float:
    """As if all tensors were packed."""
    return float(sum(each.bytes for each in (*operation.operands, *operation.results)))


def forward(operation: Operation) -> tuple[Kernel, ...]:
    """native_layer_norm(input, normalized shape, ...)."""
    return _over_rows(operation, 1)


def backward(operation: Operation) -> tuple[Kernel, ...]:
    """native_layer_norm_backward(gradient, input, normalized shape, ..., output mask).

    The input's gradient and the weights' come from separate kernels ("weights": the latter alone). Sums over all rows
    take longest; frozen or absent weights need none ("untrained").
    """
    mask = argument(operation, OUTPUT_MASK[base(operation)], "output_mask")
    of_input, *of_weights = mask if isinstance(mask, tuple) else (True, True)
    trained = "" if of_input else "weights"
    return _over_rows(operation, 2, trained if any(of_weights) else "untrained")


def channels(operation: Operation) -> tuple[Kernel, ...]:
    """Batch normalisation: (elements, channels); with statistics of the past (elements, planes) of all pictures."""
    image = first(operation)
    layout = memory_format(image)
    if base(operation) in BY_STATISTICS and argument(operation, 5) is False:
        size = 2.0 * image.bytes
        if layout:  # channels lie in rows
            return launched(
                operation, (image.elements,), "row", image.dtype, "mul", size=size
            )
        shape, name = (
            (image.elements, image.shape[0] * image.shape[1]),
            "batch_norm_elemt",
        )
        return launched(operation, shape, "", image.dtype, name, size=size)
    return launched(operation, (image.elements, image.shape[1]), layout, image.dtype)


def gathered(operation: Operation) -> tuple[Kernel, ...]:
    """batch_norm_gather_stats_with_counts(image, means, ...): of every rank's channels; the image is not read."""
    means = tensor(operation, 1) or first(operation)
    return launched(operation, means.shape, dtype=means.dtype, size=4.0 * means.bytes)


def groups(operation: Operation) -> tuple[Kernel, ...]:
    """Group normalisation: (batch, channels, elements of a channel)."""
    image = first(operation)
    shape = (*image.shape[:2], prod(image.shape[2:]))
    return launched(operation, shape, dtype=image.dtype)


def groups_backward(operation: Operation) -> tuple[Kernel, ...]:
    """native_group_norm_backward(gradient, image, ...): both copied so that pixels of a channel follow each other."""
    return *packed(operation, 0, 1), *groups(operation)


OF_CHANNELS = words(
    "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
    "_native_batch_norm_legit _batch_norm_with_update batch_norm_backward batch_norm_stats batch_norm_elemt "
    "batch_norm_backward_reduce batch_norm_backward_elemt"
)
RULES = {
    "native_layer_norm": forward,
    "native_layer_norm_backward": backward,
    "_fused_rms_norm": forward,
    "_fused_rms_norm_backward": backward,
    **dict.fromkeys(OF_CHANNELS, channels),
    "batch_norm_gather_stats": gathered,
    "batch_norm_gather_stats_with_counts": gathered,
    "native_group_norm": groups,
    "native_group_norm_backward": groups_backward,
}
