"""Values after a communication: of small tensors, as if every rank had this rank's; of a broadcast, rank 0's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from prestep.workloads.capture.record.objects import Exchange
from prestep.workloads.capture.record.values import LARGEST, tensors_in, value_of

#: Where a communication has what it sends and what it fills: places among its arguments, "result": what it returns.
SENDS: dict[str, tuple[int, int | str]] = {
    "allreduce_": (0, 0),
    "allgather_": (1, 0),
    "_allgather_base_": (1, 0),
    "allgather_into_tensor_coalesced_": (1, 0),
    "reduce_scatter_": (1, 0),
    "_reduce_scatter_base_": (1, 0),
    "alltoall_base_": (1, 0),
    "alltoall_": (1, 0),
    "gather_": (1, 0),
    "scatter_": (1, 0),
    "all_reduce": (0, "result"),
    "all_reduce_": (0, 0),
    "all_gather_into_tensor": (0, "result"),
    "reduce_scatter_tensor": (0, "result"),
    "all_to_all_single": (0, "result"),
    "broadcast": (0, "result"),
}
SUMS = (
    "allreduce_",
    "all_reduce",
    "all_reduce_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor",
)


def agree(
    name: str,
    arguments: Sequence[Any],
    result: Any,
    ranks: Sequence[int],
    exchange: Exchange,
) -> None:
    """Gives what a communication among some ranks fills its values."""
    if name in ("send", "recv_"):
        peer = ranks[int(arguments[2])]
        _pass(name, tensors_in(arguments[0]), peer, exchange)
        return
    if name == "broadcast_":
        for tensor in tensors_in(arguments[0]):
            _put(tensor, exchange.broadcast_value(_small(tensor)), False)
        return
    if name not in SENDS:
        return
    source, target = SENDS[name]
    filled = tensors_in(result if target == "result" else arguments[int(target)])
    sent = tensors_in(arguments[source])
    if not sent:
        return
    times = len(ranks) if name in SUMS and _adds(arguments) else 1
    for place, tensor in enumerate(filled):
        _put(tensor, _fitted(_small(sent[min(place, len(sent) - 1)]), tensor, times))


def _adds(arguments: Sequence[Any]) -> bool:
    """Whether a reduction is a sum: not a mean, nor the largest or smallest."""
    named = [str(a).lower() for a in arguments if isinstance(a, str)]
    boxed = [a for a in arguments if isinstance(a, torch.ScriptObject)]
    ops = [a for a in boxed if "ReduceOp" in str(a._type())]
    if ops:
        return int(ops[0].op()) == int(dist.ReduceOp.SUM)
    return "sum" in named


def _small(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its value, where that is known and of few elements."""
    return value_of(tensor) if tensor.numel() <= LARGEST else None


def _fitted(
    value: torch.Tensor | None, tensor: torch.Tensor, times: int
) -> torch.Tensor | None:
    """A value repeated, or cut, to the size of what it fills."""
    if value is None or not value.numel():
        return None
    flat = value.reshape(-1)
    repeats = -(-tensor.numel() // flat.numel())
    whole = flat.repeat(repeats)[: tensor.numel()].reshape(tuple(tensor.shape))
    return (whole * times).to(tensor.dtype)


def _pass(
    name: str, tensors: Sequence[torch.Tensor], peer: int, exchange: Exchange
) -> None:
    """Tensors from one rank to another."""
    for tensor in tensors:
        if name == "send":
            exchange.send_value(_small(tensor), peer)
        else:
            _receive(tensor, exchange.received_value(peer))


def _receive(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    """What another rank sent, such as the shape of what it sends next."""
    if value is not None and value.shape == tensor.shape:
        _put(tensor, value.to(tensor.dtype), False)


def _put(
    tensor: torch.Tensor, value: torch.Tensor | None, assumed: bool = True
) -> None:
    if isinstance(tensor, FakeTensor):
        tensor._value, tensor._assumed = value, assumed
    elif value is not None:
        tensor.copy_(value)
