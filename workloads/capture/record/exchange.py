"""Values that ranks exchange: Python objects, and small tensors.

What rank 0 gave others is kept in files for the ranks that run after it. After a reduction, tensors have the value that
they would have if every rank had this rank's.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from prestep.workloads.capture.record.values import LARGEST, tensors_in, value_of
from prestep.workloads.operation import words

#: Where rank 0 keeps what it broadcast, and other ranks look for it.
FILE = "PRESTEP_CAPTURE_OBJECTS"
VALUES = "-values"  # of tensors that a rank sent: the file beside that of objects


class Exchange:
    """What is broadcast, objects and small tensors, in the order of calls; each rank makes the same calls."""

    def __init__(self, rank: int) -> None:
        self.path = Path(os.environ[FILE]) if FILE in os.environ else None
        self.rank, self.first = rank, rank == 0
        self.sent: dict[int, list[bytes]] = {}  # by the rank that receives
        self.received: Counter[int] = Counter()  # by the rank that sends
        self.values: dict[int, list[Any]] = {}  # of tensors, by the rank that receives
        self.awaited: dict[int, Iterator[Any]] = {}  # by the rank that sends
        self.last = b""
        self.given: list[bytes] = [] if self.first else self._read()
        self.calls = 0

    # Programs name the arguments of these as PyTorch does.
    def broadcast(self, object_list: list[Any], *_: Any, **__: Any) -> None:
        """Rank 0's objects in place of this rank's."""
        object_list[:] = self._exchanged(object_list)

    def broadcast_value(self, value: Any) -> Any:
        """Rank 0's value of a tensor in place of this rank's, where it has the same shape."""
        given = self._exchanged(value)
        alike = value is None or given is None or given.shape == value.shape
        return given if alike else value

    def _exchanged(self, own: Any) -> Any:
        self.calls += 1
        if self.first:
            self.given.append(pickle.dumps(own))
        elif self.calls <= len(self.given):
            return pickle.loads(self.given[self.calls - 1])
        return own

    # -- from one rank to another ------------------------------------------------------------------
    def send(
        self,
        object_list: list[Any],
        dst: Any = None,
        group: Any = None,
        *_: Any,
        **o: Any,
    ) -> None:
        self.last = pickle.dumps(object_list)
        self.sent.setdefault(_peer(dst, group, o.get("group_dst")), []).append(
            self.last
        )

    def receive(
        self,
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        *_: Any,
        **o: Any,
    ) -> int:
        """What the other rank sent if it was run; else the like of what this one sent last: stages are alike."""
        peer = _peer(src, group, o.get("group_src"))
        given = self._sent_by(peer)
        number = self.received[peer]
        self.received[peer] += 1
        kept = given[number] if number < len(given) else self.last
        if kept:
            object_list[:] = pickle.loads(kept)
        return peer

    def send_value(self, value: Any, receiver: int) -> None:
        """A tensor is sent; its value, where it is small and known."""
        self.values.setdefault(receiver, []).append(value)

    def received_value(self, sender: int) -> Any:
        """The value of the next tensor from a rank; None where that was not run, or nobody knows it."""
        if sender not in self.awaited:
            path = self._path(sender, self.rank, VALUES)
            given = pickle.loads(path.read_bytes()) if path and path.exists() else []
            self.awaited[sender] = iter(given)
        return next(self.awaited[sender], None)

    def _sent_by(self, peer: int) -> list[bytes]:
        path = self._path(peer, self.rank)
        return pickle.loads(path.read_bytes()) if path and path.exists() else []

    def _path(self, sender: int, receiver: int, what: str = "") -> Path | None:
        if self.path is None:
            return None
        return self.path.with_name(f"{self.path.name}{what}-{sender}-{receiver}")

    def _read(self) -> list[bytes]:
        if self.path is None or not self.path.exists():
            return []
        kept: list[bytes] = pickle.loads(self.path.read_bytes())
        return kept

    def keep(self) -> None:
        if self.first and self.path is not None:
            self.path.write_bytes(pickle.dumps(self.given))
        for what, by_receiver in (("", self.sent), (VALUES, self.values)):
            for receiver, given in by_receiver.items():
                path = self._path(self.rank, receiver, what)
                if path is not None:
                    path.write_bytes(pickle.dumps(given))


def _peer(rank: int | None, group: Any, in_group: int | None) -> int:
    """The rank in the world of one that is named by it, or by its place in a group."""
    if rank is not None:
        return rank
    return int(dist.get_global_rank(group or dist.group.WORLD, in_group))


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
SUMS = words(
    "allreduce_ all_reduce all_reduce_ reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor"
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
