"""Laws of one queue of launches: what waits at its head holds up everything behind it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from prestep.sim.graph.opgraph import KERNEL, OpGraph
from prestep.sim.planning.queue import in_one_queue
from tests.sim.graphs import Op, graph
from tests.sim.test_engine import programs, run, times


@pytest.mark.parametrize("waits", [(), (1,)])
def test_a_kernel_behind_another_holds_up_other_streams(waits: tuple[int, ...]) -> None:
    """As on an H200: whether or not it also waits for them (lab/cases/launch-order/queue.csv)."""
    first, second = Op("b", 100.0), Op("b", 100.0, deps=waits)
    made = graph([[first, Op("a", 10.0), second, Op("a", 10.0)]])
    free, held = (times(run(each))[3][0] for each in (made, in_one_queue(made)))
    ended = times(run(made))[0][1]
    assert free < ended <= held


def test_a_kernel_at_the_head_of_its_stream_holds_up_nothing() -> None:
    """Neither does a long one that runs, nor one that waits for what ran before those behind it."""
    ops = [Op("a", 10.0), Op("b", 100.0, deps=(0,)), Op("a", 10.0), Op("a", 10.0)]
    made = graph([ops])
    assert times(run(made)) == times(run(in_one_queue(made)))


@given(programs())
def test_kernels_begin_in_the_order_of_their_launches(made: OpGraph) -> None:
    """Of every rank, whatever streams they are on and whatever they wait for."""
    done = run(in_one_queue(made))
    for rank, program in enumerate(made.programs):
        starts = [
            begin
            for (begin, _), kind in zip(times(done, rank), program.kind, strict=True)
            if kind == KERNEL
        ]
        assert all(one <= other for one, other in pairwise(starts))
