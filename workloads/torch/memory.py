"""Device memory of a rank while its step is recorded: what is alive, by owner."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

OWNERS = ("parameters", "gradients", "optimizer", "activations", "buffers", "workspace")


class Peak(NamedTuple):
    """The peak so far, its owners, and how much had come or gone."""

    logged: int
    bytes: float
    owners: dict[str, float]


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
    first_buckets : float
        Bytes that DDP had before it rebuilt its buckets.
    issued : Sized
        The operations issued so far.
    reserved : float
        Bytes that the allocator holds after the step; 0 where it is not simulated.
    modules : dict
        Bytes at the peak by the path of the module that asked for them, where that is known.
    on_host : dict
        Bytes that the rank keeps in its host's memory instead, all step long, by owner.
    log : list
        Since the step began: operations issued, owner, bytes that came or went.
    """

    def __init__(self) -> None:
        self.alive = dict.fromkeys(OWNERS, 0.0)
        self.now = 0.0
        self.peak = 0.0
        self.at_peak = dict(self.alive)
        self.before = dict(self.alive)
        self.at_update: dict[str, float] = {}
        self.first_buckets = 0.0
        self.reserved = 0.0
        self.modules: dict[str, float] = {}
        self.on_host: dict[str, float] = {}
        self.issued: Sized = ()
        self.log: list[tuple[int, str, float]] = []

    def allocate(self, size: float, owner: str) -> None:
        """Counts a block that comes."""
        self.log.append((len(self.issued), owner, size))
        self.alive[owner] += size
        self.now += size
        if self.now > self.peak:
            self.peak = self.now
            self.at_peak = dict(self.alive)

    def release(self, size: float, owner: str) -> None:
        """Counts a block that goes."""
        self.log.append((len(self.issued), owner, -size))
        self.alive[owner] -= size
        self.now -= size

    def moment(self) -> Peak:
        """What `forget` goes back to."""
        return Peak(len(self.log), self.peak, self.at_peak)

    def forget(self, moment: Peak) -> None:
        """Takes back what came since a moment and has gone again, as if it had never been."""
        left = dict.fromkeys(OWNERS, 0.0)
        for _, owner, size in self.log[moment.logged :]:
            left[owner] += size
        self.log[moment.logged :] = [
            (len(self.issued), owner, size) for owner, size in left.items() if size
        ]
        self.peak, self.at_peak = moment.bytes, moment.owners
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, dict(self.alive)

    def keep_on_host(self, owner: str, size: float) -> None:
        """Counts what the rank has in its host's memory."""
        self.on_host[owner] = self.on_host.get(owner, 0.0) + size

    def begin_update(self) -> None:
        """All gradients of the step are there; the optimizer is next."""
        self.at_update = dict(self.alive)

    def reset_peak(self) -> None:
        """The step begins: what is alive now is the peak so far."""
        self.peak, self.at_peak = self.now, dict(self.alive)
        self.before, self.log = dict(self.alive), []


class Storage:
    """A block of device memory, freed when the last tensor that views it goes."""

    __slots__ = ("memory", "owner", "size")

    def __init__(self, memory: Memory, size: float, owner: str) -> None:
        # The caching allocator hands out multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
        self.memory, self.size, self.owner = memory, -(-size // 512) * 512.0, owner
        memory.allocate(self.size, owner)

    def __del__(self) -> None:
        self.memory.release(self.size, self.owner)

    def change_owner(self, owner: str) -> None:
        """Counts the block for another owner from now on."""
        self.memory.release(self.size, self.owner)
        self.owner = owner
        self.memory.allocate(self.size, owner)
