"""Power budgets in steady state: what the first steps draw beyond the limit is not there for later ones.

A run begins with full budgets. Where a step spends more than it fills again, they fall from step to step, and products
are slowed once nothing is left: after a few steps, or after hundreds. From an empty budget the same state is reached
within a step.
"""

from __future__ import annotations

import numpy as np

from prestep.sim.engine.execution import Run, Timed
from prestep.sim.graph.opgraph import KERNEL

# A budget falls if a step leaves less of it than the step before by more than this share of all of it: far above the
# rounding of sums, far below what moves a step (guess).
LESS = 1e-6


def falling(timed: Timed, run: Run) -> frozenset[int]:
    """Ranks whose budget is lower after the last step than after the one before it.

    None of a run of one step, nor of one whose budgets were given: chains, and runs from spent ones.
    """
    if run.steps < 2 or timed.budget is not None or timed.spent:
        return frozenset()
    found = set()
    for program, left in zip(timed.graph.programs, run.budget, strict=True):
        limited = timed.limited.get(program.rank)
        power = timed.power if limited is None else limited.power
        kernels = np.flatnonzero(program.kind == KERNEL)
        if power is None or not len(kernels):
            continue
        before, last = left[-2:, kernels[-1]]
        if last < before - LESS * power.budget:
            found.add(program.rank)
    return frozenset(found)
