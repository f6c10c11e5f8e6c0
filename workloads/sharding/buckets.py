"""Buckets: gradients of whole parameters that ranks reduce in one operation.

A policy says where a bucket ends, when it is reduced, and what surrounds the reduction. PyTorch's DDP, DeepSpeed's
stages 0 to 2 and Megatron, with its distributed optimizer or without, are values of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Member = TypeVar("Member")


@dataclass(frozen=True)
class BucketPolicy:
    """Decisions about gradients that are reduced in buckets.

    Attributes
    ----------
    size, first : float
        At which a bucket, and the first one, closes, in what members are counted in: bytes (PyTorch) or elements.
    fits : bool
        A bucket closes before the gradient that it cannot take; else with the one that brings it to its size.
    beside : str
        Backward passes beside which full buckets are reduced: "last" of a step, "every" one, or "none": they are
        reduced when all gradients are there.
    flat : float
        Elements in which gradients are then reduced, and updated parameters gathered; 0: all at once.
    sent : int
        Bytes of a number that is reduced.
    scatters : bool
        Each rank gets its shard alone.
    packs : bool
        Gradients are copied into a bucket, and what is kept out of it.
    keeps_all : bool
        That is the whole bucket; else this rank's shard.
    waits : bool
        Computation waits for each bucket.
    """

    size: float
    first: float = 0.0
    fits: bool = False
    beside: Literal["last", "every", "none"] = "last"
    flat: float = 0.0
    sent: int = 0
    scatters: bool = False
    packs: bool = False
    keeps_all: bool = False
    waits: bool = False


class Filling(Generic[Member]):
    """The bucket that gradients go into as they come.

    Attributes
    ----------
    reduce : callable
        Takes the members of a bucket that closes, and its size.
    """

    def __init__(
        self, policy: BucketPolicy, reduce: Callable[[list[Member], float], None]
    ) -> None:
        self.policy, self.reduce = policy, reduce
        self.members: list[Member] = []
        self.size, self.closed = 0.0, 0

    def make_room(self, size: float) -> None:
        """Closes a bucket that cannot take a gradient of this size."""
        if self.policy.fits and self.size + size > self.policy.size:
            self.close()

    def add(self, member: Member, size: float) -> None:
        """Takes a gradient; a bucket that it brings to its size closes."""
        self.members.append(member)
        self.size += size
        first = self.policy.first if self.closed == 0 else 0.0
        if not self.policy.fits and self.size >= (first or self.policy.size):
            self.close()

    def close(self) -> None:
        """Reduces what is there."""
        members, size = self.members, self.size
        if members:
            self.members, self.size = [], 0.0
            self.closed += 1
            self.reduce(members, size)


def cut(
    policy: BucketPolicy, sizes: Iterable[tuple[Member, float]]
) -> Iterator[tuple[list[Member], float]]:
    """Members of each bucket, in the order in which their gradients come, and its size.

    Examples
    --------
    >>> sizes = [("head", 3.0), ("b", 2.0), ("a", 2.0)]
    >>> [members for members, _ in cut(BucketPolicy(4.0), sizes)]
    [['head', 'b'], ['a']]
    >>> [members for members, _ in cut(BucketPolicy(4.0, fits=True), sizes)]
    [['head'], ['b', 'a']]
    """
    buckets: list[tuple[list[Member], float]] = []
    filling = Filling[Member](policy, lambda *bucket: buckets.append(bucket))
    for member, size in sizes:
        filling.make_room(size)
        filling.add(member, size)
    filling.close()
    yield from buckets
