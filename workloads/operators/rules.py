"""From an ATen operation to the kernels that PyTorch launches for it."""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operation, words
from prestep.workloads.operators import (
    attention,
    convolution,
    copies,
    embeddings,
    foreach,
    indexing,
    losses,
    norms,
    pointwise,
    products,
    recurrent,
    reductions,
)
from prestep.workloads.operators.tensors import base, launched, on_gpu

#: Namespace of functional collectives, which a recording names where a compiler has to know their tensors: what they
#: send, and when, has an event of its own.
FUNCTIONAL = "_c10d_functional"

Rule = Callable[[Operation], tuple[Kernel, ...]]

#: Operations that launch nothing: other views of the same memory, memory without contents, questions to the host.
VIEWS = words(
    "_conj _nested_view_from_buffer _reshape_alias _unsafe_view alias as_strided as_strided_ conj data "
    "detach detach_ diagonal dim empty empty_like empty_permuted empty_strided expand expand_as "
    "is_contiguous is_same_size lift lift_fresh movedim new_empty new_empty_strided numel permute real "
    "imag record_stream resize_ select set_ size slice split split_with_sizes squeeze squeeze_ "
    "storage_offset stride swapaxes sym_numel sym_size sym_storage_offset sym_stride t t_ transpose "
    "transpose_ unbind unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view "
    "view_as view_as_complex view_as_real wait_tensor _wrap_tensor_autograd "
    "_coalesced_ _dimI _dimV _indices _nnz _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors "
    "_values is_coalesced _has_compatible_shallow_copy_type is_pinned _version result_type"
)
RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **copies.RULES,
    **indexing.RULES,
    **embeddings.RULES,
    **foreach.RULES,
    **losses.RULES,
    **norms.RULES,
    **convolution.RULES,
    **attention.RULES,
    **products.RULES,
    **recurrent.RULES,
    **dict.fromkeys(VIEWS, lambda _: ()),
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
    if operation.name.startswith(FUNCTIONAL) or (tensors and not on_gpu(tensors)):
        return ()
    rule = RULES.get(base(operation))
    if rule is not None:
        return _by(rule, operation)
    return launched(operation, (max((each.elements for each in tensors), default=1),))


def _by(rule: Rule, operation: Operation) -> tuple[Kernel, ...]:
    """What a rule says of an operation; rules take arguments as PyTorch's schema has them."""
    try:
        return rule(operation)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        shapes = ", ".join(str(list(each.shape)) for each in operation.operands)
        expected, hint = "arguments that it takes", "capture the program again"
        # Someone who looks for a mistake of a rule itself needs the cause.
        raise InputError.of(operation.name, "", f"[{shapes}]", expected, hint) from e
