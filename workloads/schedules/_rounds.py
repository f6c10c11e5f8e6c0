"""What the interleaved schedules share: rounds of microbatches that visit a rank's chunks in turn.

With R = max(1, M // P) rounds of k = M / R microbatches, the i-th forward of a rank is of chunk (i // k) mod v, its
i-th backward of the mirrored chunk, both of microbatch k (i // (k v)) + i mod k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prestep.sim.errors import Mistake
from prestep.workloads.schedules import Action


def rounds(ranks: int, microbatches: int) -> int:
    """The number of rounds, R."""
    return max(1, microbatches // ranks)


def uneven(name: str, ranks: int, microbatches: int, where: str) -> Iterator[Mistake]:
    """The mistake of microbatches that do not divide into rounds, if it is one."""
    parts = rounds(ranks, microbatches)
    if microbatches % parts:
        expected = f"a multiple of {parts} (microbatches // pipeline ranks) for {name}"
        yield Mistake(where, "training.microbatches", str(microbatches), expected)


@dataclass(frozen=True)
class _Rounds:
    """The order in which the microbatches of a rank visit its chunks.

    `width` of them make a round; the last round has what is left.
    """

    rank: int
    ranks: int
    microbatches: int
    chunks: int
    width: int

    def action(self, kind: str, index: int) -> Action:
        """The action number `index` of a kind."""
        before, within = divmod(index, self.width * self.chunks)
        done = before * self.width
        width = min(self.width, self.microbatches - done)
        chunk, microbatch = divmod(within, width)
        local = chunk if kind == "F" else self.chunks - 1 - chunk
        return Action(local * self.ranks + self.rank, kind, done + microbatch)


def walk(
    rank: int,
    ranks: int,
    microbatches: int,
    chunks: int,
    hop: int,
    split: bool,
    width: int | None = None,
) -> tuple[Action, ...]:
    """The actions of one rank that warms up `hop` forwards more than the next rank.

    `split`: backwards are I and W; `width`: microbatches of a round, equal rounds of about one for each rank without.
    """
    width = width or microbatches // rounds(ranks, microbatches)
    total = microbatches * chunks
    action = _Rounds(rank, ranks, microbatches, chunks, width).action
    warmup = min((chunks - 1) * width + hop * (ranks - 1 - rank), total)
    order = [action("F", index) for index in range(warmup)]
    # Rank r holds back r weight gradients, to fill its own bubble at the end.
    held = min(rank, total) if split else 0
    for index in range(total):
        if warmup + index < total:
            order.append(action("F", warmup + index))
        order.append(action("I" if split else "B", index))
        if split and index >= rank:
            order.append(action("W", index - rank))
    order.extend(action("W", index) for index in range(total - held, total))
    return tuple(order)
