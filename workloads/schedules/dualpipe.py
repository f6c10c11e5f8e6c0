"""DualPipeV: a V of two chunks whose forwards run together with the other chunk's backwards.

DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, and https://github.com/deepseek-ai/DualPipe; as torch's
ScheduleDualPipeV, whose runtime issues the two halves of an overlapped pair one after the other unless a model
registers a function that really overlaps them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from prestep.sim.errors import Mistake
from prestep.workloads.schedules import Action

PLACEMENT = "v"
CHUNKS = 2

Steps = tuple[tuple[Action, ...], ...]


def problems(
    ranks: int, microbatches: int, chunks: int, where: str
) -> Iterator[Mistake]:
    """ScheduleDualPipeV refuses fewer microbatches than stages."""
    if microbatches < 2 * ranks:
        expected = f"at least {2 * ranks}, the pipeline stages, for dualpipe"
        yield Mistake(where, "training.microbatches", str(microbatches), expected)


def actions(
    rank: int, ranks: int, microbatches: int, chunks: int = 2
) -> tuple[Action, ...]:
    """The actions of one rank, overlapped pairs written forward first."""
    return tuple(
        action for step in steps(rank, ranks, microbatches, chunks) for action in step
    )


def steps(rank: int, ranks: int, microbatches: int, chunks: int = 2) -> Steps:
    """The actions of one rank; a step of two is an overlapped pair, for which both inputs must have arrived."""
    order = Order((rank, 2 * ranks - 1 - rank))
    after = ranks - 1 - rank
    order.run("F0", times=2 * after)
    order.run("F0", "F1", times=rank + 1)
    order.run("I1", "W", "F1", times=after)
    for index in range(microbatches - 2 * ranks + rank + 1):
        if index == 0 and after == 0:
            order.run("F0", "B1")  # not overlapped: the bubble is smaller so
        else:
            order.run("F0B1")
        order.run("F1B0")
    order.run("B1", "F1B0", times=after)
    order.run(*_last_backwards(rank))
    order.run("W", "I0", times=after)
    order.run("W", times=rank + 1)
    return tuple(order.steps)


def _last_backwards(rank: int) -> list[str]:
    """Backwards of both chunks; from the middle on they are split and leave their weight gradients for the end."""
    both = ["B1", "B0"] * (rank + 1)
    middle = 2 * ((rank + 1) // 2) + (rank + 1) % 2
    return both[:middle] + [word.replace("B", "I") for word in both[middle:]]


class Order:
    """Steps of a V: counts microbatches by pass and chunk, and remembers weight gradients to run, oldest first."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.steps: list[tuple[Action, ...]] = []
        self._stages = stages
        self.number: Counter[tuple[str, int]] = Counter()
        self._weights: deque[Action] = deque()

    def run(self, *words: str, times: int = 1) -> None:
        """Append steps: "F0" the next forward of chunk 0, "F0B1" an overlapped pair, "W" the oldest weight gradient.

        "W0" is the next one of chunk 0.
        """
        for word in words * times:
            if word == "W":
                self.steps.extend([(self._weights.popleft(),)] if self._weights else [])
            else:
                self.steps.append(
                    tuple(
                        self._next(word[at], int(word[at + 1]))
                        for at in range(0, len(word), 2)
                    )
                )

    def _next(self, kind: str, chunk: int) -> Action:
        key = ("B" if kind == "I" else kind, chunk)
        action = Action(self._stages[chunk], kind, self.number[key])
        self.number[key] += 1
        if kind == "I":
            self._weights.append(action._replace(kind="W"))
        return action
