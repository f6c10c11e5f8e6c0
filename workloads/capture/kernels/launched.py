"""From an ATen operation to the kernels that PyTorch launches for it."""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.kernels import (
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
from prestep.workloads.capture.kernels.tensors import base, on_gpu
from prestep.workloads.capture.kernels.tensors import launched as one
from prestep.workloads.capture.operation import Operation

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

    Raises
    ------
    InputError
        If its arguments are none that it takes.
    """
    tensors = (*operation.operands, *operation.results)
    if tensors and not on_gpu(tensors):
        return ()
    rule = RULES.get(base(operation))
    if rule is not None:
        return _by(rule, operation)
    return one(operation, (max((each.elements for each in tensors), default=1),))


def _by(rule: Rule, operation: Operation) -> tuple[Kernel, ...]:
    """What a rule says of an operation; rules take arguments as PyTorch's schema has them."""
    try:
        return rule(operation)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        shapes = ", ".join(str(list(each.shape)) for each in operation.operands)
        expected, hint = "arguments that it takes", "capture the program again"
        raise InputError(
            Mistake(operation.name, "", f"[{shapes}]", expected, hint)
        ) from e  # who looks for a mistake of a rule itself needs it
