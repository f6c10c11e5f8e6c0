"""Why a step with faster links can take longer: kernels run beside other communication than before.

A collective that runs holds SMs and memory bandwidth that kernels beside it then lack (`sim/costs/interference.py`).
Where links change, it runs beside other kernels, and what waits for it less can take longer itself.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of the difference that has to be kernels', for it to be their doing.
MOST = 0.5


def kernels_instead(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds by which kernels take longer while communication is waited for less; negative: the other way round.

    Of two breakdowns of a step, in seconds by what it is made of; 0 where that does not explain their difference.
    """
    moved = {
        name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}
    }
    difference, kernels = sum(moved.values()), moved.get("compute", 0.0)
    waited = sum(value for name, value in moved.items() if name.startswith("exposed_"))
    explains = kernels * difference > 0 and abs(kernels) >= MOST * abs(difference)
    return kernels if explains and waited * difference < 0 else 0.0
