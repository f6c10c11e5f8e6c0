"""Device memory of a rank over a step: what is alive, by owner and by module, and what the allocator reserves for it.

A model's tape and a captured program keep the same account: a row for every block that comes or goes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Sized
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from prestep.workloads.memory.allocator import BLOCK, Allocator

OWNERS = ("parameters", "gradients", "optimizer", "activations", "buffers", "workspace")
# Steps after which what is reserved grows no more, as a rule: in the first one the optimizer makes its state.
STEPS = 3
# Between numbers of blocks and of others as large.
OTHERS = -(1 << 40)


class Row(NamedTuple):
    """A block that comes (`size` > 0) or goes: operations issued, owner, bytes; its number, stream and module."""

    issued: int
    owner: str
    size: float
    block: int = 0
    stream: Hashable = 0
    module: str = ""


class Moment(NamedTuple):
    """The peak so far, its owners, its place in the log, and how much had come or gone."""

    logged: int
    bytes: float
    owners: dict[str, float]
    peak_at: int


class Memory:
    """Bytes alive by owner, in the order the host issues work (as PyTorch's allocator counts them).

    Blocks are as large as was asked until the step is over. Then the allocator cuts them, and everything is counted
    again: what it does not cut off a large block is in use.

    Attributes
    ----------
    alive : dict
        Bytes by owner, now.
    now, peak : float
        Bytes of all owners, now and at most.
    at_peak, before : dict
        Bytes by owner at the peak, and as the step begins (when the peak was last reset).
    at_update : dict
        Bytes asked for by owner as the optimizer's update begins, when all gradients are there; empty: none is known.
    issued : Sized
        The operations issued so far.
    stream, module : hashable, str
        Where the program is that asks: the current stream, and the path of the module that runs forward.
    on_host : dict
        Bytes that the rank keeps in its host's memory instead, all step long, by owner.
    log : list of Row
        Since the step began.
    standing : dict
        Rows of the blocks that the step finds, by number.
    by_update, rebuilt : collection, list
        Numbers of those that the first update makes, and of those that the second step makes anew (DDP's buckets).
    in_blocks, expandable : bool
        Whether every row is a block of the allocator (what stands for many tensors is none), and its segments grow.
    allocator : Allocator, optional
        What the steps before have left, where it was recorded; else they were like this one.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.in_blocks = True
    >>> weights = memory.take(3 * 2**20, "parameters")
    >>> memory.reset_peak()
    >>> memory.give_back(memory.take(1000, "activations", module="layers.0.ffn"))
    >>> memory.end_step()
    >>> memory.peak - 3 * 2**20, memory.modules
    (1024.0, {'layers.0.ffn': 1024.0})
    >>> memory.reserved / 2**20
    22.0
    """

    def __init__(self) -> None:
        self.alive = dict.fromkeys(OWNERS, 0.0)
        self.now = 0.0
        self.peak = 0.0
        self.at_peak = dict(self.alive)
        self.before = dict(self.alive)
        self.at_update: dict[str, float] = {}
        self.on_host: dict[str, float] = {}
        self.issued: Sized = ()
        self.stream: Hashable = 0
        self.module = ""
        self.log: list[Row] = []
        self.standing: dict[int, Row] = {}
        self.by_update: Collection[int] = ()
        self.rebuilt: list[int] = []
        self.in_blocks = self.expandable = False
        self.allocator: Allocator | None = None
        self._blocks: dict[int, Row] = {}
        self._number = 0
        self._peak_at = self._update_at = 0

    def take(
        self,
        size: float,
        owner: str,
        block: int = 0,
        stream: Hashable | None = None,
        module: str | None = None,
    ) -> int:
        """Counts a block that comes; returns its number.

        Without a number it gets the next one; without a stream and a module, those of the program now.
        """
        if not block:
            self._number += 1
            block = self._number
        stream = self.stream if stream is None else stream
        module = self.module if module is None else module
        size = -(-size // BLOCK) * float(BLOCK)
        row = Row(len(self.issued), owner, size, block, stream, module)
        self._blocks[block] = row
        self._count(row)
        return block

    def give_back(self, block: int) -> None:
        """Counts a block that goes."""
        self._go(self._blocks.pop(block))

    def change_owner(self, block: int, owner: str) -> None:
        """Counts a block for another owner from now on."""
        self._go(self._blocks[block])
        row = self._blocks[block]._replace(issued=len(self.issued), owner=owner)
        self._blocks[block] = row
        self._count(row)

    def _go(self, row: Row) -> None:
        self._count(Row(len(self.issued), row.owner, -row.size, row.block))

    def _count(self, row: Row) -> None:
        self.log.append(row)
        self.alive[row.owner] += row.size
        self.now += row.size
        if self.now > self.peak:
            self.peak, self._peak_at = self.now, len(self.log)
            self.at_peak = dict(self.alive)

    def moment(self) -> Moment:
        """What `forget` goes back to."""
        return Moment(len(self.log), self.peak, self.at_peak, self._peak_at)

    def forget(self, moment: Moment) -> None:
        """Takes back what came since a moment and has gone again, as if it had never been."""
        since, left = self.log[moment.logged :], dict[tuple[int, str], float]()
        for row in since:
            key = row.block, row.owner
            left[key] = left.get(key, 0.0) + row.size
        issued = len(self.issued)
        self.log[moment.logged :] = [
            row._replace(issued=issued) for row in since if left[row.block, row.owner]
        ]
        self.peak, self.at_peak = moment.bytes, moment.owners
        self._peak_at = moment.peak_at
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, dict(self.alive)
            self._peak_at = len(self.log)

    def keep_on_host(self, owner: str, size: float) -> None:
        """Counts what the rank has in its host's memory."""
        self.on_host[owner] = self.on_host.get(owner, 0.0) + size

    def begin_update(self) -> None:
        """All gradients of the step are there; the optimizer is next."""
        self.at_update, self._update_at = dict(self.alive), len(self.log)

    def reset_peak(self) -> None:
        """The step begins: what is alive now is the peak so far."""
        self.peak, self.at_peak = self.now, dict(self.alive)
        self.before, self.standing = dict(self.alive), dict(self._blocks)
        self.log, self._peak_at = [], 0

    @property
    def first_buckets(self) -> float:
        """Bytes that DDP had before it rebuilt its buckets."""
        return sum(self.standing[block].size for block in self.rebuilt)

    def end_step(self) -> None:
        """The step is over: its blocks are cut, and what goes from now on goes with the program itself."""
        if not self.in_blocks:
            return
        if self.allocator is None:
            self.allocator = Allocator(self.expandable)
            found, sizes = self._play_steps(self.allocator)
        else:
            self._find(self.allocator, self.standing.keys() - self.allocator.storages)
            found = self._found(self.allocator)
            sizes = _play(self.allocator, list(_moves(self.log)))
        self._recount(found, sizes)

    def _play_steps(self, allocator: Allocator) -> tuple[dict[int, float], list[float]]:
        """Some steps like this one; of the last one, bytes of the blocks that it found, and of each row of the log."""
        moves, cut = list(_moves(self.log)), self._update_at
        self._find(allocator, self.standing.keys() - set(self.by_update))
        for step in range(STEPS):
            held = allocator.reserved
            if step == 1:
                # A watchdog thread holds DDP's first buckets for a while, on some of the ranks.
                self._find(allocator, self.rebuilt, OTHERS)
            found, sizes = self._found(allocator), _play(allocator, moves[:cut])
            if step == 0:
                self._find(allocator, self.by_update)
            sizes += _play(allocator, moves[cut:])
            # A step leaves what it found.
            for block in sorted(allocator.storages - self.standing.keys()):
                allocator.give_back(block)
            self._find(allocator, self.standing.keys() - allocator.storages)
            if step and allocator.reserved == held:
                break
        return found, sizes

    def _find(
        self, allocator: Allocator, blocks: Collection[int], apart: int = 0
    ) -> None:
        """Asks for blocks that the step finds; for others as large, with numbers so far `apart`."""
        for row in map(self.standing.__getitem__, sorted(blocks)):
            allocator.take(row.block + apart, row.size, row.stream)

    def _found(self, allocator: Allocator) -> dict[int, float]:
        return {block: float(allocator.size_of(block)) for block in self.standing}

    def _recount(self, found: dict[int, float], sizes: list[float]) -> None:
        """Counts what the step found and its log once more, with these sizes."""
        log = self.log
        self.alive = dict.fromkeys(OWNERS, 0.0)
        for block, size in found.items():
            row = self.standing[block]._replace(size=size)
            self.standing[block] = row
            self.alive[row.owner] += size
            if block in self._blocks:
                self._blocks[block] = self._blocks[block]._replace(size=size)
        self.now = self.peak = sum(self.alive.values())
        self.at_peak, self.before = dict(self.alive), dict(self.alive)
        self.log, self._peak_at = [], 0
        for row, size in zip(log, sizes, strict=True):
            cut = row if row.size == size else row._replace(size=float(size))
            self._count(cut)
            if size > 0 and row.block in self._blocks:
                self._blocks[row.block] = cut

    @property
    def reserved(self) -> float:
        """Bytes that the allocator holds after the step; 0 where rows are no blocks."""
        return float(self.allocator.reserved) if self.allocator else 0.0

    @cached_property
    def modules(self) -> dict[str, float]:
        """Bytes at the peak by the path of the module that asked for them, where that is known."""
        at_peak = _by_module(dict(self.standing), self.log[: self._peak_at])
        return {name: size for name, size in sorted(at_peak.items()) if name}

    def kept(self) -> dict[str, float]:
        """Bytes that came in the step and are alive now, by module."""
        return _by_module({}, self.log)


def _play(allocator: Allocator, moves: Sequence[tuple[Row, bool]]) -> list[float]:
    """Asks for and gives back the blocks of these rows; returns the bytes of each."""
    sizes = list[float]()
    for (_, _, size, block, stream, _), moved in moves:
        if not moved:
            held = allocator.size_of(block)
        elif size > 0:
            held = allocator.take(block, size, stream)
        else:
            held = allocator.give_back(block)
        sizes.append(held if size > 0 else -held)
    return sizes


def _by_module(alive: dict[int, Row], rows: Sequence[Row]) -> dict[str, float]:
    """Bytes of what is alive after these rows, by the module that asked for it."""
    for row, moved in _moves(rows):
        if moved and row.size > 0:
            alive[row.block] = row
        elif moved:
            alive.pop(row.block, None)
    bytes_of: dict[str, float] = {}
    for row in alive.values():
        bytes_of[row.module] = bytes_of.get(row.module, 0.0) + row.size
    return bytes_of


def _moves(rows: Sequence[Row]) -> Iterator[tuple[Row, bool]]:
    """Every row, and whether its block comes or goes: not where it gets another owner (it goes, and the same comes)."""
    owned = False
    for row, after in zip_longest(rows, rows[1:]):
        came, owned = (
            owned,
            bool(
                row.size < 0
                and after
                and (after.block, after.size) == (row.block, -row.size)
            ),
        )
        yield row, not (came or owned)


class Storage:
    """A block of device memory, freed when the last tensor that views it goes."""

    __slots__ = ("block", "memory", "owner", "size")

    def __init__(self, memory: Memory, size: float, owner: str) -> None:
        self.memory, self.size, self.owner = (
            memory,
            -(-size // BLOCK) * float(BLOCK),
            owner,
        )
        self.block = memory.take(size, owner)

    def __del__(self) -> None:
        self.memory.give_back(self.block)

    def change_owner(self, owner: str) -> None:
        """Counts the block for another owner from now on."""
        self.owner = owner
        self.memory.change_owner(self.block, owner)


def storages(memory: Memory, sizes: Iterable[float], owner: str) -> list[Storage]:
    """A block for each of these sizes."""
    return [Storage(memory, size, owner) for size in sizes]
