"""PyTorch's caching allocator: which blocks it cuts from what it reserved, and when it reserves more.

Rules of c10/cuda/CUDACachingAllocator.cpp (2.11) with its defaults: sizes are multiples of 512 bytes; up to 1 MiB come
from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones have a segment of a multiple of 2 MiB.
Segments belong to the stream that asked first. The smallest free block that is large enough is taken, the lowest
address of equals; what is left of it stays free where it is worth it (512 bytes of a small block, more than 1 MiB of a
large one). Free neighbours are joined. Nothing is given back to the device.

Where segments are expandable (PYTORCH_ALLOC_CONF), each stream has one of small blocks, which grows by 2 MiB, and one
of others, by 20 MiB; what is left of a block always stays free, and the last one counts as large as it may become.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass

MIB = 1 << 20
#: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge.
BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, LARGE_SEGMENT, ROUND = 10 * MIB, 20 * MIB, 2 * MIB

Pool = tuple[Hashable, bool]  # stream, whether of small blocks
Segment = tuple[
    Hashable, bool, list[tuple[int, int]]
]  # stream, small, (bytes, storage)


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
        Bytes asked of the device, and bytes of blocks in use.
    """

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self.reserved = self.allocated = 0
        self._free: dict[Pool, list[tuple[int, int, Block]]] = {}
        self._used: dict[int, Block] = {}
        self._first: list[Block] = []  # of every segment
        self._last: dict[Pool, Block] = {}  # of an expandable segment

    def take(self, storage: int, size: float, stream: Hashable) -> int:
        """A request for so many bytes; returns those of its block. Of none there is no block."""
        if size <= 0:
            return 0
        wanted = rounded(size)
        pool = stream, wanted <= SMALL
        block = self._best(pool, wanted) or self._new(pool, wanted)
        left = block.size - wanted
        if left >= BLOCK if pool[1] or self.expandable else left > SMALL:
            self._cut(block, wanted)
        block.storage = storage
        self._used[storage] = block
        self.allocated += block.size
        return block.size

    @property
    def storages(self) -> Set[int]:
        """Numbers of those that have a block."""
        return self._used.keys()

    def size_of(self, storage: int) -> int:
        """Bytes of a storage's block; 0 for one that has none."""
        return self._used[storage].size if storage in self._used else 0

    def give_back(self, storage: int) -> int:
        """The end of a request; its block joins free neighbours. Returns the block's bytes."""
        block = self._used.pop(storage, None)
        if block is None:
            return 0
        size = block.size
        self.allocated -= size
        block.storage = 0
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.storage:
                block = self._joined(block, neighbour)
        self._offer(block)
        return size

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

    def _best(self, pool: Pool, size: int) -> Block | None:
        free = self._free.get(pool, [])
        place = bisect.bisect_left(free, (size, 0))
        if place == len(free):
            return None
        if self.expandable and free[place][2].after is None and place + 1 < len(free):
            place += 1  # the last block counts as large as it may become
        return free.pop(place)[2]

    def _new(self, pool: Pool, size: int) -> Block:
        if self.expandable:
            return self._expanded(pool, size)
        block = Block(self.reserved, segment_size(size), pool)
        self._first.append(block)
        self.reserved += block.size
        return block

    def _expanded(self, pool: Pool, size: int) -> Block:
        """The end of the pool's only segment, which grows by as many pages as are missing."""
        last, page = self._last.get(pool), SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        if last is not None and not last.storage:
            self._withdraw(last)
            block = last
        else:
            block = Block(last.address + last.size if last else 0, 0, pool, 0, last)
            if last is None:
                self._first.append(block)
            else:
                last.after = block
            self._last[pool] = block
        grown = -(-(size - block.size) // page) * page
        block.size += grown
        self.reserved += grown
        return block

    def _cut(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        elif self.expandable:
            self._last[block.pool] = rest
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
        elif self.expandable:
            self._last[first.pool] = first
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
