"""Elementwise operations: every element of the result from those of the operands at its place."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operand, Operation, words
from prestep.workloads.operators.tensors import (
    base,
    first,
    launched,
    layout_of,
    moved,
    on_gpu,
    read_by,
)

NAMES = words(
    "abs acos add addcdiv addcmul asin atan atan2 bernoulli bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min complex copysign cos cosh "
    "div elu elu_backward eq erf erfc erfinv exp exp2 expm1 exponential floor floor_divide fmod frac ge "
    "gelu gelu_backward glu glu_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward "
    "hardtanh hardtanh_backward heaviside isfinite isinf isnan isneginf isposinf ldexp le leaky_relu "
    "leaky_relu_backward lerp lgamma log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward "
    "logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill_ maximum minimum mish "
    "mish_backward mul nan_to_num native_dropout native_dropout_backward ne neg nextafter normal "
    "ones_like polar pow prelu rand rand_like randint randn randn_like random reciprocal relu "
    "relu_backward remainder round rsqrt rsub sgn sigmoid sigmoid_backward sign silu silu_backward sin "
    "sinh softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold threshold_backward "
    "trunc uniform where xlogy"
)
#: Those that write without reading what was there.
WRITING = frozenset(("bernoulli_", "normal_", "uniform_", "random_", "exponential_"))


def elementwise(operation: Operation) -> tuple[Kernel, ...]:
    """One kernel over the elements of the result; in place is like out of place.

    "number" where a single number on the GPU stands beside them: it is read again for each, and nothing in vectors.
    """
    writes = operation.results or (first(operation),)
    name = base(operation)
    reads = () if name in WRITING else _tensors(operation, writes[0])
    layout = layout_of(reads, writes[0])
    size = moved(reads, writes)
    count = writes[0].elements
    if not count:
        return ()
    if count > 1 and any(x.elements == 1 for x in on_gpu(read_by(operation))):
        layout = layout or "number"
    return launched(operation, (count,), layout, kind=name.removesuffix("_"), size=size)


def _tensors(operation: Operation, result: Operand) -> tuple[Operand, ...]:
    """Operands that have elements for those of the result; numbers on the host and the GPU cost nothing."""
    return tuple(
        each
        for each in on_gpu(read_by(operation))
        if each.elements > 1 or result.elements == 1
    )


RULES = dict.fromkeys((*NAMES, *(f"{name}_" for name in NAMES)), elementwise)
