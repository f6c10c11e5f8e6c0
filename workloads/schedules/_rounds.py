"""What the interleaved schedules share: rounds of microbatches that visit a rank's chunks in turn.

With R = max(1, M // P) rounds of k = M / R microbatches, the i-th forward of a rank is of chunk (i // k) mod v, its
i-th backward of the mirrored chunk, both of microbatch k (i // (k v)) + i mod k.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.errors import Mistake
from workloads.schedules import Action


def rounds(ranks: int, microbatches: int) -> int:
    """The number of rounds, R."""
    return max(1, microbatches // ranks)


def uneven(name: str, ranks: int, microbatches: int, where: str) -> Iterator[Mistake]:
    """The mistake of microbatches that do not divide into rounds, if it is one."""
    parts = rounds(ranks, microbatches)
    if microbatches % parts:
        expected = f"a multiple of {parts} (microbatches // pipeline ranks) for {name}"
        yield Mistake(where, "training.microbatches", str(microbatches), expected)


def walk(
    rank: int, ranks: int, microbatches: int, chunks: int, hop: int, split: bool
) -> tuple[Action, ...]:
    """The actions of one rank that warms up `hop` forwards more than the next rank; `split`: backwards are I and W."""
    width = microbatches // rounds(ranks, microbatches)
    total = microbatches * chunks

    def action(kind: str, index: int) -> Action:
        chunk = index // width % chunks
        local = chunk if kind == "F" else chunks - 1 - chunk
        return Action(
            local * ranks + rank,
            kind,
            width * (index // (width * chunks)) + index % width,
        )

    warmup = min((chunks - 1) * width + hop * (ranks - 1 - rank), total)
    order = [action("F", index) for index in range(warmup)]
    for index in range(total):
        if warmup + index < total:
            order.append(action("F", warmup + index))
        order.append(action("I" if split else "B", index))
        # Rank r holds back r weight gradients, to fill its own bubble at the end.
        if split and index >= rank:
            order.append(action("W", index - rank))
    if split:
        order.extend(action("W", index) for index in range(max(total - rank, 0), total))
    return tuple(order)
