"""The ATen operation as which a kernel of a hand-written step runs: how two GPUs that measured it differ.

A GPU that takes another's times where it has none of its own takes them longer or shorter as this operation was
measured on both, where both have tables of operations, instead of as their datasheets differ: few kernels that memory
bounds use all of an H200's. Products and attention are none of these: in a step power bounds them, in short runs of one
operation it does not.
"""

from __future__ import annotations

import math

from sim.costs.aten import PREFIX
from sim.costs.kinds import STREAM_PASSES, work
from sim.graph.kernel import Kernel

#: Operations of kinds over rows and columns, over words, and of convolutions.
OPERATIONS = {
    "rms_norm_fwd": "_fused_rms_norm",
    "rms_norm_bwd": "_fused_rms_norm_backward",
    "rms_norm_bwd_input": "_fused_rms_norm_backward",
    "rms_norm_bwd_weight": "_fused_rms_norm_backward",
    "layer_norm_fwd": "native_layer_norm",
    "layer_norm_bwd": "native_layer_norm_backward",
    "layer_norm_bwd_input": "native_layer_norm_backward",
    "layer_norm_bwd_weight": "native_layer_norm_backward",
    "softmax": "_softmax",
    "softmax_bwd": "_softmax_backward_data",
    "log_softmax_fwd": "_log_softmax",
    "log_softmax_bwd": "_log_softmax_backward_data",
    "batchnorm_fwd": "native_batch_norm",
    "batchnorm_bwd": "native_batch_norm_backward",
    "embedding_fwd": "embedding",
    "embedding_bwd": "embedding_dense_backward",
    "index_put": "index_put",
    "nll_loss_fwd": "nll_loss_forward",
    "nll_loss_bwd": "nll_loss_backward",
    "conv_fwd": "convolution",
    "conv_dgrad": "convolution_backward",
    "conv_wgrad": "convolution_backward",
}
#: Kinds whose images lie with channels last.
CHANNELS_LAST = (
    "batchnorm_fwd",
    "batchnorm_bwd",
    "conv_fwd",
    "conv_dgrad",
    "conv_wgrad",
)
#: AdamW reads and writes four lists of tensors.
ADAMW, LISTS = "_fused_adamw_", "4"


def counterpart(kernel: Kernel) -> Kernel | None:
    """The operation as which a checked kernel runs; None where none is like it."""
    kind, shape, layout = kernel.kind, kernel.shape, ""
    if kind == "adamw":
        name, layout, shape = ADAMW, LISTS, (shape[1], shape[0])
    elif kind in OPERATIONS:
        name = OPERATIONS[kind]
        layout = "channels_last" if kind in CHANNELS_LAST else ""
        shape = (*shape, 1) if kind.startswith("conv") else shape
    elif kind in STREAM_PASSES:
        name, layout, shape = kind, kernel.layout, (math.prod(shape),)
    else:
        return None
    flops, size = work(kernel)
    return Kernel(PREFIX + name, shape, kernel.dtype, layout, size, flops)
