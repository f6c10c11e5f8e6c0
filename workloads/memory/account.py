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

    Attributes
    ----------
    alive : dict
        Bytes by owner, now.
    now, peak : float
        Bytes of all owners, now and at most.
    at_peak, before : dict
        Bytes by owner at the peak, and as the step begins (when the peak was last reset).
    at_update : dict
        Bytes by owner as the optimizer's update begins, when all gradients are there; empty: no update is known.
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
        What the steps before have left, where it was recorded; blocks are its own then.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.in_blocks = True
    >>> weights = memory.take(3 * 2**20, "parameters")
    >>> memory.reset_peak()
    >>> memory.give_back(memory.take(1000, "activations", module="layers.0.ffn"))
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
        self._end: int | None = None

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
        if self.allocator is not None:
            held = self.allocator.size_of(block)
            size = float(held or self.allocator.take(block, size, stream))
        else:
            size = -(-size // BLOCK) * float(BLOCK)
        row = Row(len(self.issued), owner, size, block, stream, module)
        self._blocks[block] = row
        self._come(row)
        return block

    def give_back(self, block: int) -> None:
        """Counts a block that goes."""
        self._go(self._blocks.pop(block))
        if self.allocator is not None:
            self.allocator.give_back(block)

    def change_owner(self, block: int, owner: str) -> None:
        """Counts a block for another owner from now on."""
        self._go(self._blocks[block])
        row = self._blocks[block]._replace(issued=len(self.issued), owner=owner)
        self._blocks[block] = row
        self._come(row)

    def _come(self, row: Row) -> None:
        self.log.append(row)
        self.alive[row.owner] += row.size
        self.now += row.size
        if self.now > self.peak:
            self.peak, self._peak_at = self.now, len(self.log)
            self.at_peak = dict(self.alive)

    def _go(self, row: Row) -> None:
        gone = Row(len(self.issued), row.owner, -row.size, row.block)
        self.log.append(gone)
        self.alive[row.owner] -= row.size
        self.now -= row.size

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
        """The step is over: what goes from now on goes with the program itself."""
        self._end = len(self.log)

    @cached_property
    def modules(self) -> dict[str, float]:
        """Bytes at the peak by the path of the module that asked for them, where that is known."""
        at_peak = _by_module(dict(self.standing), self.log[: self._peak_at])
        return {name: size for name, size in sorted(at_peak.items()) if name}

    def kept(self) -> dict[str, float]:
        """Bytes that came in the step and are alive now, by module."""
        return _by_module({}, self.log)

    @cached_property
    def reserved(self) -> float:
        """Bytes that the allocator holds after some steps; 0 where rows are no blocks."""
        if self.allocator is not None or not self.in_blocks:
            return float(self.allocator.reserved) if self.allocator else 0.0
        allocator, cut = Allocator(self.expandable), self._update_at
        before = list(_moves(self.log[:cut]))
        update = list(_moves(self.log[cut : self._end]))
        later = set(self.by_update)
        self._find(allocator, (block for block in self.standing if block not in later))
        for step in range(STEPS):
            held = allocator.reserved
            if step == 1:
                # A watchdog thread holds DDP's first buckets for a while, on some of the ranks.
                self._find(allocator, self.rebuilt, -1)
            _request(allocator, before)
            if step == 0:
                self._find(allocator, self.by_update)
            _request(allocator, update)
            # A step leaves what it found.
            for block in sorted(allocator.storages - self.standing.keys()):
                allocator.give_back(block)
            self._find(allocator, sorted(self.standing.keys() - allocator.storages))
            if step and allocator.reserved == held:
                break
        return float(allocator.reserved)

    def _find(self, allocator: Allocator, blocks: Iterable[int], sign: int = 1) -> None:
        """Requests for blocks that the step finds; of a negative `sign`: for others as large."""
        rows = map(self.standing.__getitem__, blocks)
        _request(allocator, [row._replace(block=sign * row.block) for row in rows])


def _request(allocator: Allocator, rows: Sequence[Row]) -> None:
    for _, _, size, block, stream, _ in rows:
        if size > 0:
            allocator.take(block, size, stream)
        elif size < 0:
            allocator.give_back(block)


def _by_module(alive: dict[int, Row], rows: Sequence[Row]) -> dict[str, float]:
    """Bytes of what is alive after these rows, by the module that asked for it."""
    for row in _moves(rows):
        if row.size > 0:
            alive[row.block] = row
        else:
            alive.pop(row.block, None)
    bytes_of: dict[str, float] = {}
    for row in alive.values():
        bytes_of[row.module] = bytes_of.get(row.module, 0.0) + row.size
    return bytes_of


def _moves(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows without those that only give a block to another owner: it goes, and the same comes."""
    owned = False
    for row, after in zip_longest(rows, rows[1:]):
        if owned:
            owned = False
        elif (
            after
            and (after.block, after.size) == (row.block, -row.size)
            and row.size < 0
        ):
            owned = True
        else:
            yield row


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
