"""Operations that launch nothing: other views of the same memory, memory without contents, questions to the host."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.kernels.tensors import words
from prestep.workloads.capture.operation import Operation

NAMES = words(
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


def nothing(operation: Operation) -> tuple[Kernel, ...]:
    """No kernel."""
    del operation
    return ()


RULES = dict.fromkeys(NAMES, nothing)
