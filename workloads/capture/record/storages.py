"""When device memory is taken and given back: a storage lives until Python drops the last tensor that views it."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from prestep.workloads.capture.record import sparse
from prestep.workloads.capture.record.owners import asking
from prestep.workloads.capture.record.streams import Log, Streams
from prestep.workloads.memory.allocator import Allocator


class Storages:
    """Every storage on the device that is alive now, by number.

    Attributes
    ----------
    alive
        Bytes and stream.
    allocator
        What the program's allocator has reserved by now, and for whom.
    asked
        Ids of modules that asked for storages, while `asking` is set.
    """

    def __init__(self) -> None:
        self.alive: dict[int, tuple[int, int]] = {}
        self.allocator = Allocator()
        self.asked: dict[int, int] = {}
        self.asking = False
        self._numbers = itertools.count(1)
        self._seen: dict[
            int, tuple[int, Any]
        ] = {}  # id of the storage's object -> number, weak reference
        self._watch_resizing()

    def see(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage; a new one is counted as taken. Of sparse tensors that of the values."""
        if sparse.is_sparse(tensor):
            numbers = [self.see(part) for part in sparse.parts(tensor)]
            return numbers[0]
        if tensor.layout != torch.strided:
            return 0
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen:
            return self._seen[key][0]
        number = next(self._numbers)
        self._seen[key] = number, weakref.ref(storage, lambda _: self._gone(key))
        self._take(number, storage.nbytes())
        return number

    def place(self, tensor: torch.Tensor) -> list[int]:
        """Number of a tensor's storage and where in it the tensor begins; 0 for one on the host."""
        if tensor.device.type != "cuda":
            return [0, 0]
        return [self.see(tensor), int(tensor.storage_offset())]

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage if it was seen, else 0."""
        if tensor.layout != torch.strided:
            return 0
        return self._seen.get(id(tensor.untyped_storage()), (0, None))[0]

    def _take(self, number: int, size: int) -> None:
        self.alive[number] = size, Streams.now.number
        self.allocator.take(number, size, Streams.now.number)
        if self.asking:
            self.asked[number] = asking()
        Log.current.add("allocate", number, size, Streams.now.number)

    def _give_back(self, number: int) -> None:
        del self.alive[number]
        self.allocator.give_back(number)
        Log.current.add("free", number)

    def _gone(self, key: int) -> None:
        number, _ = self._seen.pop(key)
        if number in self.alive:
            self._give_back(number)

    def _watch_resizing(self) -> None:
        """FSDP frees and takes the memory of gathered parameters by resizing their storages."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            entry = self._seen.get(id(storage))
            if entry is not None and self.alive.get(entry[0], (0, 0))[0] != size:
                if entry[0] in self.alive:
                    self._give_back(entry[0])
                if size:
                    self._take(entry[0], size)
            return result

        torch.UntypedStorage.resize_ = resized
