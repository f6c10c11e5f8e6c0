"""What a workload of `lab.bench.performance` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Counted = tuple[float, dict[str, float]]  # predicted seconds, and what was counted
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """One workload: what it does, what the peer took and predicted, and our goals.

    Attributes
    ----------
    run : callable
        Returns the predicted seconds and what was counted.
    peer : str
        Program, and its seconds and memory.
    predicted : float
        The peer's prediction in seconds; nan where there is none.
    seconds, memory : float
        Goals for the whole process: s, MB.
    """

    title: str
    run: Callable[[], Counted]
    peer: str
    predicted: float
    seconds: float
    memory: float
