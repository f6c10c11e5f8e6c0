"""PyTorch's caching allocator: which blocks it cuts from what it reserved, and when it reserves more.

Rules of c10/cuda/CUDACachingAllocator.cpp (2.11) with its defaults: sizes are multiples of 512 bytes; up to 1 MiB come
from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones have a segment of a multiple of 2 MiB.
Segments belong to the stream that asked first. The smallest free block that is large enough is taken, the lowest
address of equals; what is left of it stays free where it is worth it (512 bytes of a small block, more than 1 MiB of a
large one). Free neighbours are joined. Nothing is given back to the device.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
#: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge.
BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, LARGE_SEGMENT, ROUND = 10 * MIB, 20 * MIB, 2 * MIB

Pool = tuple[int, bool]  # stream, whether of small blocks
Segment = tuple[int, bool, list[tuple[int, int]]]  # stream, small, (bytes, storage)


def rounded(size: float) -> int:
    """Bytes of the block that a request gets at least."""
    return max(BLOCK, -(-int(size) // BLOCK) * BLOCK)


def segment_size(size: int) -> int:
    """Bytes that are asked of the device for a block that has no room."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND) * ROUND


@dataclass(eq=False)
class Block:
    """A part of a segment; `storage` is the number of who has it, 0: nobody."""

    address: int
    size: int
    pool: Pool
    storage: int = 0
    before: Block | None = None
    after: Block | None = None


class Allocator:
    """Blocks in use and free ones, as requests come and go.

    Attributes
    ----------
    reserved, allocated
        Bytes asked of the device, and bytes of blocks in use; `peak` the most that were in use.
    """

    def __init__(self) -> None:
        self.reserved = self.allocated = self.peak = 0
        self._free: dict[Pool, list[tuple[int, int, Block]]] = {}
        self._used: dict[int, Block] = {}
        self._first: list[Block] = []  # of every segment

    def take(self, storage: int, size: float, stream: int) -> int:
        """A request for so many bytes; returns those of its block. Of none there is no block."""
        if size <= 0:
            return 0
        wanted = rounded(size)
        pool = stream, wanted <= SMALL
        block = self._best(pool, wanted) or self._new(pool, wanted)
        left = block.size - wanted
        if left >= BLOCK if pool[1] else left > SMALL:
            self._cut(block, wanted)
        block.storage = storage
        self._used[storage] = block
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block.size

    def size_of(self, storage: int) -> int:
        """Bytes of a storage's block; 0 for one that has none."""
        block = self._used.get(storage)
        return 0 if block is None else block.size

    def give_back(self, storage: int) -> None:
        """The end of a request; its block joins free neighbours."""
        block = self._used.pop(storage, None)
        if block is None:
            return
        self.allocated -= block.size
        block.storage = 0
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.storage:
                block = self._joined(block, neighbour)
        self._offer(block)

    def segments(self) -> list[Segment]:
        """What is reserved: of every segment its stream, whether it has small blocks, and the blocks in order."""
        return [(*first.pool, _row(first)) for first in self._first]

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Allocator:
        """An allocator that has reserved these segments."""
        made = cls()
        for stream, small, blocks in segments:
            made._add((stream, bool(small)), blocks)
        return made

    def _add(self, pool: Pool, blocks: Iterable[tuple[int, int]]) -> None:
        before: Block | None = None
        for size, storage in blocks:
            block = Block(self.reserved, size, pool, storage, before)
            if before is None:
                self._first.append(block)
            else:
                before.after = block
            if storage:
                self._used[storage] = block
                self.allocated += size
            else:
                self._offer(block)
            self.reserved += size
            before = block
        self.peak = max(self.peak, self.allocated)

    def _best(self, pool: Pool, size: int) -> Block | None:
        free = self._free.get(pool, [])
        place = bisect.bisect_left(free, (size, 0))
        return free.pop(place)[2] if place < len(free) else None

    def _new(self, pool: Pool, size: int) -> Block:
        block = Block(self.reserved, segment_size(size), pool)
        self._first.append(block)
        self.reserved += block.size
        return block

    def _cut(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._offer(rest)

    def _joined(self, block: Block, other: Block) -> Block:
        """Two free neighbours as one, which keeps the first one's place."""
        self._withdraw(other)
        first, second = (other, block) if other is block.before else (block, other)
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _offer(self, block: Block) -> None:
        free = self._free.setdefault(block.pool, [])
        bisect.insort(free, (block.size, block.address, block))

    def _withdraw(self, block: Block) -> None:
        free = self._free[block.pool]
        del free[bisect.bisect_left(free, (block.size, block.address))]


def _row(block: Block | None) -> list[tuple[int, int]]:
    """Bytes and storage of a segment's blocks."""
    row = []
    while block is not None:
        row.append((block.size, block.storage))
        block = block.after
    return row
