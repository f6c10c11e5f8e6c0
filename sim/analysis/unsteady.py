"""Steps that are not steady when the simulation ends.

Ranks that wait for each other may take unlike times for many steps: a stage that nothing holds back yet gains on the
others, and groups of ranks whose communications meet on the same links take turns. A host thread that takes longer than
the step may still have a lead over its GPU from the first step; once that is used up, the step is the host's.
"""

from __future__ import annotations

from prestep.sim.analysis.step_times import UNLIKE, by_rank, host_times, longest, spread
from prestep.sim.engine.execution import Run
from prestep.sim.graph.opgraph import OpGraph
from prestep.sim.units import percent


def unsteadiness(graph: OpGraph, run: Run) -> float:
    """Share of the last step by which ranks differ, or by which the host thread of one takes longer than the step.

    0 where the ranks do not communicate: each has a step of its own.
    """
    times = by_rank(graph, run)
    if not graph.comms or not times:
        return 0.0
    step = longest(times.values())
    behind = max(host_times(graph, run).values()) - step
    return max(spread(times), behind / step if step > 0 else 0.0)


def is_unsteady(graph: OpGraph, run: Run) -> bool:
    """Whether later steps may take another time than the last one."""
    return unsteadiness(graph, run) > UNLIKE


def caveats(graph: OpGraph, run: Run) -> tuple[str, ...]:
    """A sentence where the last step is not steady."""
    if not is_unsteady(graph, run):
        return ()
    share = percent(unsteadiness(graph, run))
    return (
        f"ranks' steps still differ by {share} when the simulation ends: the step is the slowest rank's, "
        f"and the mean of many steps may be another",
    )
