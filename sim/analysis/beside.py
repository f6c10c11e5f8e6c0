"""Why a step on faster hardware can take longer: communication runs beside other kernels than before.

A collective that runs holds SMs and memory bandwidth that kernels beside it then lack, and one that is to begin waits
until the kernel that runs leaves it SMs (`sim/costs/interference.py`). Where links change, kernels that run beside
others can take longer; where GPUs change, communication that meets other kernels can be waited for longer.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of the difference that has to be of one of both, for it to be its doing.
MOST = 0.5

Breakdown = Mapping[str, float]  # seconds of a step by what it is made of


def kernels_instead(before: Breakdown, after: Breakdown) -> float:
    """Seconds by which kernels take longer while communication is waited for less; negative: the other way round.

    0 where that does not explain the difference of the steps.
    """
    difference, kernels, waited = _moved(before, after)
    return _explained(difference, kernels, waited)


def waiting_instead(before: Breakdown, after: Breakdown) -> float:
    """Seconds by which communication is waited for longer while kernels take less; negative: the other way round.

    0 where that does not explain the difference of the steps.
    """
    difference, kernels, waited = _moved(before, after)
    return _explained(difference, waited, kernels)


def _moved(before: Breakdown, after: Breakdown) -> tuple[float, float, float]:
    """Seconds by which the step, its kernels and what is waited for communication grow."""
    moved = {
        name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}
    }
    waited = sum(value for name, value in moved.items() if name.startswith("exposed_"))
    return sum(moved.values()), moved.get("compute", 0.0), waited


def _explained(difference: float, cause: float, other: float) -> float:
    """The cause, if it is most of the difference and the other goes against it; else 0."""
    explains = cause * difference > 0 and abs(cause) >= MOST * abs(difference)
    return cause if explains and other * difference < 0 else 0.0
