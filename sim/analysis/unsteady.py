"""Steps that are not steady when the simulation ends: ranks that wait for each other still take unlike times.

Groups of ranks whose communications meet on the same links may take turns over many steps: one group is early in one
step and late in the next. The mean over many steps is then not that of the last one simulated.
"""

from __future__ import annotations

from sim.analysis.step_times import by_rank
from sim.engine.execution import Run
from sim.graph.opgraph import OpGraph
from sim.units import percent

UNLIKE = 1e-3  # share of a step by which ranks differ from which on it is said


def spread(graph: OpGraph, run: Run) -> float:
    """How much longer the slowest rank's last step takes than the fastest one's, as a share of it."""
    last = by_rank(graph, run).values()
    slowest = max(last, default=0.0)
    return (slowest - min(last)) / slowest if slowest > 0 else 0.0


def caveats(graph: OpGraph, run: Run) -> tuple[str, ...]:
    """A sentence where ranks differ though they communicate."""
    unlike = spread(graph, run)
    if unlike <= UNLIKE or not graph.comms:
        return ()
    return (
        f"ranks' steps still differ by {percent(unlike)} when the simulation ends: groups of them share links and take "
        f"turns, so that the mean of many steps may be another",
    )
