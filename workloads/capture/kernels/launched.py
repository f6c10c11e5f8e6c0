"""From an ATen operation to the kernels that PyTorch launches for it."""

from __future__ import annotations

from collections.abc import Callable

from sim.graph.kernel import Kernel
from workloads.capture.kernels import (
    attention,
    convolution,
    copies,
    embedding,
    foreach,
    indexing,
    losses,
    norms,
    pointwise,
    pools,
    products,
    recurrent,
    reductions,
    views,
)
from workloads.capture.kernels.tensors import base, on_gpu
from workloads.capture.kernels.tensors import launched as one
from workloads.capture.operation import Operation

Rule = Callable[[Operation], tuple[Kernel, ...]]

RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **copies.RULES,
    **indexing.RULES,
    **pools.RULES,
    **foreach.RULES,
    **embedding.RULES,
    **losses.RULES,
    **norms.RULES,
    **convolution.RULES,
    **attention.RULES,
    **products.RULES,
    **recurrent.RULES,
    **views.RULES,
}


def kernels_of(operation: Operation) -> tuple[Kernel, ...]:
    """The kernels of one operation, in order; () where it launches nothing on a GPU.

    An operation without a rule is one kernel that moves all its tensors once: never free.
    """
    tensors = (*operation.operands, *operation.results)
    if tensors and not on_gpu(tensors):
        return ()
    rule = RULES.get(base(operation))
    if rule is not None:
        return rule(operation)
    return one(operation, (max((each.elements for each in tensors), default=1),))
