"""Attention of a recording on another GPU than the one that the program was told it has.

A recording has the kernels that PyTorch took for that GPU: cuDNN's where they come first. Where they do not, PyTorch
would have asked FlashAttention, or memory-efficient kernels for a mask or for narrower values.
"""

from __future__ import annotations

from dataclasses import replace

from prestep.workloads.capture.recording import Recording
from prestep.workloads.operation import Argument, Operation
from prestep.workloads.operators.attention import CALLS, EFFICIENT
from prestep.workloads.operators.tensors import base, tensor
from prestep.workloads.torch.attention_backend import default_backend

CUDNN = "_scaled_dot_product_cudnn_attention"


def on_gpu(recorded: Recording, capability: tuple[int, ...]) -> Recording:
    """The recording with the attention that PyTorch takes on a GPU of that compute capability; (): unknown."""
    asked = {base(each) for each in recorded.operations}
    if recorded.attention_said:
        return recorded  # the program lets PyTorch take no other
    if not capability or not asked & {CUDNN, f"{CUDNN}_backward"}:
        return recorded
    version = recorded.versions.get("torch", "")
    settled = (_settled(each, version, capability) for each in recorded.operations)
    return replace(recorded, operations=tuple(settled))


def _settled(
    operation: Operation, version: str, capability: tuple[int, ...]
) -> Operation:
    """An operation of cuDNN's by the kernels that come first; those of other kernels stay."""
    name = base(operation)
    if not version or not name.startswith(CUDNN):
        return operation
    call, own = CALLS[name], operation.arguments
    query, key, value = (tensor(operation, call.query + at) for at in range(3))
    if query is None or key is None or value is None:
        return operation
    masked = call.bias is not None and tensor(operation, call.bias) is not None
    backend = default_backend(version, capability, query.shape[-1], value.shape[-1])
    if backend == "cudnn":
        return operation
    plain = backend == "flash2" and not masked
    if not plain and query.shape[1] != key.shape[1]:
        return operation  # PyTorch computes these in separate operations
    asked = _by_flash(own, call.query) if plain else _efficient(own, call.query)
    other = "flash" if plain else EFFICIENT
    renamed = operation.name.replace("cudnn", other)
    return replace(operation, name=renamed, arguments=asked)


def _by_flash(own: tuple[Argument, ...], query: int) -> tuple[Argument, ...]:
    """Arguments in FlashAttention's order: no mask, and backward random numbers behind all others."""
    if not query:
        return own[:3] + own[5:]
    *tensors, seed, offset = own[:8]
    return (*tensors, None, None, *own[11:15], seed, offset)


def _efficient(own: tuple[Argument, ...], query: int) -> tuple[Argument, ...]:
    """Those of memory-efficient attention: forward they are cuDNN's, backward the mask comes first."""
    if not query:
        return own
    *tensors, output, sums, seed, offset, mask = own[:9]
    wanted, causal = (True, True, True, False), own[14:15] if own[14] else ()
    return (*tensors, mask, output, sums, seed, offset, own[13], wanted, *causal)
