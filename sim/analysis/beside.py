"""Why a step on faster hardware can take longer: communication runs beside other kernels than before.

A collective that runs holds SMs and memory bandwidth that kernels beside it then lack, and one that is to begin waits
until the kernel that runs leaves it SMs (`sim/costs/interference.py`). Where links change, kernels that run beside
others can take longer; where GPUs, the host or links change, communication that meets other kernels can be waited for
longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Of the difference that has to be of one of both, for it to be its doing.
MOST = 0.5
# Parts of a step in which a rank waits for kernels and communication of others.
WAITING = ("bubble", "straggler")

Breakdown = Mapping[str, float]  # seconds of a step by what it is made of


def kernels_instead(before: Breakdown, after: Breakdown) -> float:
    """Seconds by which kernels take longer while communication is waited for less; negative: the other way round.

    0 where that does not explain the difference of the steps.
    """
    moved = _moved(before, after)
    return _explained(moved, moved.kernels, against=moved.waited)


def waiting_instead(before: Breakdown, after: Breakdown, against: float) -> float:
    """Seconds by which communication is waited for longer though the change saves time; negative: the other way round.

    0 where that does not explain the difference of the steps. ``against``: seconds by which what the change is about
    grows by itself, so below 0 where the step is to be longer all the same.
    """
    moved = _moved(before, after)
    return _explained(moved, moved.waited, against)


def grown(before: Breakdown, after: Breakdown, part: str) -> float:
    """Seconds by which a part of a step grows."""
    return after.get(part, 0.0) - before.get(part, 0.0)


class _Moved(NamedTuple):
    """Seconds by which a step and its parts grow.

    Attributes
    ----------
    step, kernels, waited
        The step, its kernels, and what is waited for communication.
    others
        What is waited for other ranks: a pipeline's stages and slower GPUs.
    """

    step: float
    kernels: float
    waited: float
    others: float


def _moved(before: Breakdown, after: Breakdown) -> _Moved:
    moved = {name: grown(before, after, name) for name in {*before, *after}}
    waited = sum(value for name, value in moved.items() if name.startswith("exposed_"))
    others = sum(moved.get(name, 0.0) for name in WAITING)
    return _Moved(sum(moved.values()), moved.get("compute", 0.0), waited, others)


def _explained(moved: _Moved, cause: float, against: float) -> float:
    """The cause, if it is most of the difference and the other goes against it; else 0.

    What takes longer on one stage is a bubble on the others: that is of the same cause where it grows with it.
    """
    follows = moved.others if moved.others * cause > 0 else 0.0
    explains = cause * moved.step > 0
    most = abs(cause + follows) >= MOST * abs(moved.step)
    return cause if explains and most and against * moved.step < 0 else 0.0
