"""Long steps by fewer rounds: what repeats is executed a few times and put in as often as it comes.

A graph with fewer rounds (`prestep.sim.graph.rounds`) is executed. Where two rounds in a row are the same but for a
shift in
time, on every rank and link, those left out would be the same again: the second one is put in as often as rounds were
left out, and what comes after it is that much later. It is only done where nothing else could have happened:

* What is under way at the begin of the two rounds, the power budgets and the rates of transfers are the same.
* Every operation of the whole graph takes the place of one that is like it.
* It waits for what it waits for as long as that one does: for its stream, other operations, its peers and its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from prestep.sim.engine.execution import Run, Timed
from prestep.sim.engine.rank import Rank
from prestep.sim.engine.steady.window import HOST, SAME, Uneven, Window, streams
from prestep.sim.errors import PrestepError
from prestep.sim.extras import lazily
from prestep.sim.graph.opgraph import OpGraph
from prestep.sim.graph.rounds import Shortened, shortened

with lazily():
    from prestep.sim.engine.steady import extended

# Below so many operations nothing is gained.
MANY = 400

_KNOWN: WeakKeyDictionary[OpGraph, Shortened | None] = WeakKeyDictionary()


# Looks at a run's ranks before it begins.
Watch = Callable[[Sequence[Rank]], None]


def executed(
    timed: Timed, steps: int, execute: Callable[[Timed, int, Watch], Run]
) -> Run | None:
    """A run by fewer rounds; None where the rounds are not the same, or too few.

    `execute` executes every operation of a graph.
    """
    short = _shortened(timed)
    if short is None:
        return None
    plans = tuple(timed.plans[c] for c in short.comms)
    try:
        fewer = replace(timed, graph=short.graph, plans=plans)
        run = execute(fewer, steps, partial(_watch, short))
        return extended.Extended(timed, short, run).run()
    except (Uneven, PrestepError):  # what is wrong is said of the whole run
        return None


def _shortened(timed: Timed) -> Shortened | None:
    graph = timed.graph
    if timed.noise is not None or timed.background or graph.operations < MANY:
        return None
    if graph not in _KNOWN:
        _KNOWN[graph] = shortened(graph)
    short = _KNOWN[graph]
    if short is None:
        return None
    pairs = zip(short.alike, timed.plans, strict=True)
    same = all(timed.plans[first] is plan for first, plan in pairs)
    return short if same else None


def _watch(short: Shortened, ranks: Sequence[Rank]) -> None:
    """Looks at a short run when the last round that every rank is in has ended, in its first step.

    A run whose rounds are not the same ends there.
    """
    rank, one = short.fewest
    last = one.begin + (one.count - short.left_out) * one.period - 1
    waiter = ranks[rank].ended(last)
    waiter.callbacks.append(lambda _: _check_window(short, ranks))


def _check_window(short: Shortened, ranks: Sequence[Rank]) -> None:
    """Raises Uneven where the last two rounds of the first step are not the same."""
    start, end, budget = (
        [np.array(getattr(rank, column)[: len(rank.program)]) for rank in ranks]
        for column in ("start", "end", "budget")
    )
    for times in (*start, *end):
        times[times < 0] = np.inf
    tolerance = SAME * float(max(one[np.isfinite(one)].max() for one in end))
    window = Window.of(short, start, tolerance)
    for rank, program in enumerate(short.graph.programs):
        for stream, ops in streams(program).items():
            if stream != HOST:
                columns = start[rank][ops], end[rank][ops], budget[rank][ops]
                window.of_stream(*columns, tolerance)
