"""Python objects that ranks exchange: what rank 0 gave others is kept for the ranks that are run after it."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

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
