"""The engine on graphs made by hand: streams, dependencies, the host's lead, meetings, interference, stuck runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Event

from prestep.sim.analysis.arrow import to_arrow
from prestep.sim.analysis.spans import timeline_of
from prestep.sim.engine.clock import Clock
from prestep.sim.engine.engine import Run, Stuck, execute
from prestep.sim.engine.host_thread import HostThread
from prestep.sim.graph.opgraph import SYNC, Comm, OpGraph
from tests.sim.graphs import US, Op, all_reduce, beside, graph, timed
from tests.sim.timeline_laws import check

few = settings(max_examples=25, deadline=None)
REL = 1e-9


def run(made: OpGraph, steps: int = 1, **changes: Any) -> Run:
    return execute(timed(made, **changes), steps)


def times(done: Run, rank: int = 0, step: int = 0) -> list[tuple[float, float]]:
    """(start, end) of every operation of a rank, in microseconds."""
    pairs = zip(done.start[rank][step], done.end[rank][step], strict=True)
    return [(round(start / US, 6), round(end / US, 6)) for start, end in pairs]


@st.composite
def programs(draw: st.DrawFn) -> OpGraph:
    """Two ranks that meet in every communication, with kernels on three streams and waits in between."""
    comms = draw(st.lists(st.sampled_from((0.0, 1.0, 7.0, 30.0)), max_size=4))
    whole = st.integers(0, 9).map(float)
    ranks = []
    for _ in range(2):
        kernel = st.builds(
            Op, st.sampled_from(("compute", "copy", "side")), whole, whole
        )
        ops = draw(st.lists(kernel, min_size=1, max_size=12))
        for c in range(
            len(comms)
        ):  # communications of both ranks in one order, on one stream
            at = draw(
                st.integers(
                    max([i + 1 for i, op in enumerate(ops) if op.comms], default=0),
                    len(ops),
                )
            )
            ops.insert(at, Op("nccl", comms=(c,), host=1.0))
        if draw(st.booleans()):
            ops.insert(draw(st.integers(0, len(ops))), Op("host", sync=True, host=1.0))
        known = [
            draw(st.sets(st.integers(-len(ops), i - 1), max_size=3)) if i else set()
            for i in range(len(ops))
        ]
        ranks.append(
            [replace(op, deps=tuple(sorted(known[i]))) for i, op in enumerate(ops)]
        )
    return graph(
        ranks,
        [all_reduce(size=size) for size in comms],
        limit=draw(st.sampled_from((1, 3, 1024))),
    )


@few
@given(programs())
def test_time_runs_forward_and_a_stream_never_overlaps_itself(made: OpGraph) -> None:
    """Every span obeys the laws of `timeline.check`; a launch comes before its start by the launch latency."""
    done = run(made, 2, slowdown=lambda kernel, channels: 2.0, contention=1.5)
    check(timeline_of(made, done))
    for p, launch, start in zip(made.programs, done.launch, done.start, strict=True):
        gpu = p.kind != 2
        assert (start[:, gpu] >= launch[:, gpu] + 2 * US - 1e-12).all()


@few
@given(programs())
def test_nothing_starts_before_what_it_depends_on_has_ended(made: OpGraph) -> None:
    """A dependency with a negative number is one of the step before."""
    done = run(made, 2)
    for p, start, end in zip(made.programs, done.start, done.end, strict=True):
        n, begins, ends = len(p), start.ravel(), end.ravel()
        for g in range(2 * n):
            before = [g // n * n + d for d in p.deps[g % n] if g // n * n + d >= 0]
            # A wait of the host begins at once and ends after what it waits for.
            assert all(
                (ends if p.kind[g % n] == 2 else begins)[g] >= ends[d] - 1e-12
                for d in before
            )


@few
@given(programs())
def test_the_host_runs_ahead_by_the_launch_limit_at_most(made: OpGraph) -> None:
    """Operation g is launched after operation g - limit has ended, and after the host's own work for it."""
    done = run(made, 2)
    for p, launch, end in zip(made.programs, done.launch, done.end, strict=True):
        launches, ends, k = launch.ravel(), end.ravel(), made.launch_limit
        assert (launches[k:] >= ends[:-k] - 1e-12).all()
        assert (np.diff(launches) >= np.tile(p.host, 2)[1:] - 1e-12).all()


@few
@given(programs())
def test_a_communication_begins_when_its_last_rank_has_come(made: OpGraph) -> None:
    """All ranks see the same moment: the latest arrival; and they leave together, a latency and the bytes later."""
    done = run(made)
    of = [[g for g in range(len(p)) if p.kind[g] == 1] for p in made.programs]
    for a, b in zip(*of, strict=True):
        came = max(done.start[0][0, a], done.start[1][0, b])
        assert done.ready[0][a] == done.ready[1][b] == came
        assert done.end[0][0, a] == done.end[1][0, b]
        size = made.comms[
            made.programs[0].parts[int(made.programs[0].payload[a])][0]
        ].size
        assert done.end[0][0, a] - came == pytest.approx((1 + size) * US, rel=1e-6)


@few
@given(programs())
def test_the_same_run_has_the_same_bytes(made: OpGraph) -> None:
    """Nothing depends on chance or on the order of a set: the Arrow tables are equal byte by byte."""
    first, second = (to_arrow(timeline_of(made, run(made, 2))) for _ in range(2))
    assert first.equals(second)
    buffers = [
        [b.to_pybytes() for c in t.columns for k in c.chunks for b in k.buffers() if b]
        for t in (first, second)
    ]
    assert buffers[0] == buffers[1]


def test_launch_and_gap_worked_out_by_hand() -> None:
    """An idle stream starts 2 us after the launch; a busy one 1 us after its last kernel; a slow host leaves holes."""
    done = run(
        graph([[Op(work=10, host=5), Op(work=10, host=1), Op(work=10, host=30)]])
    )
    assert done.launch[0].tolist()[0] == pytest.approx([5 * US, 6 * US, 36 * US])
    assert times(done) == [(7, 17), (18, 28), (38, 48)]


def test_steps_run_back_to_back() -> None:
    """The second step is issued while the first one runs; nothing but its stream and dependencies hold it up."""
    done = run(graph([[Op(work=10, host=5), Op("copy", 4, deps=(-2,))]]), 2)
    assert times(done, step=0) == [(7, 17), (7, 11)]
    assert times(done, step=1) == [(18, 28), (18, 22)]


def test_a_host_that_synchronizes_does_not_run_ahead() -> None:
    """What comes after a wait of the host is launched when what it waits for has ended."""
    ops = [Op(work=10), Op("host", sync=True, deps=(0,)), Op(work=10, host=5)]
    done = run(graph([ops]))
    assert times(done)[0] == (2, 12)
    assert done.launch[0][0, 2] == pytest.approx(17 * US)
    assert times(done)[2] == (19, 29)


def test_the_limit_is_that_of_the_launch_queue() -> None:
    """A thousand and twenty-four launches may be outstanding, no more: the next waits for the first to end."""
    done = run(graph([[Op(work=100)] + [Op(work=0)] * 1024]))
    assert done.launch[0][0, 1023] == 0.0
    assert done.launch[0][0, 1024] == pytest.approx(done.end[0][0, 0])


def test_a_collective_waits_for_the_slow_rank() -> None:
    """Ranks come at 2 and 13 us; both see the transfer from 13 to 24: a latency of 1, 10 bytes at 1 byte/us."""
    late = [Op(work=10), Op("nccl", comms=(0,), deps=(0,))]
    made = graph([[Op("nccl", comms=(0,))], late], [all_reduce()])
    done = run(made)
    assert times(done, 0) == [(2, 24)] and times(done, 1)[1] == (13, 24)
    assert done.ready[0][0] == done.ready[1][1] == pytest.approx(13 * US)


def test_a_slow_rank_is_slow_in_its_kernels_only() -> None:
    """`scale` stretches kernels, not gaps, launches or transfers."""
    made = graph(
        [[Op(work=10), Op(work=10), Op("nccl", comms=(0,), deps=(1,))]],
        [all_reduce((0,))],
    )
    done = run(made, scale={0: 1.5})
    assert times(done) == [(2, 17), (18, 33), (34, 45)]


def test_two_collectives_share_a_link() -> None:
    """Transfers of different ranks over one link take turns by fairness: 10 bytes each, both end after 20 us."""
    both = [[Op("nccl", comms=(rank,))] for rank in (0, 1)]
    done = run(graph(both, [all_reduce((0,)), all_reduce((1,))]))
    assert times(done, 0) == times(done, 1) == [(2, 23)]


@pytest.mark.parametrize("buffered", [0.0, 4.0, 10.0])
def test_a_sender_is_done_when_the_rest_is_in_its_buffers(buffered: float) -> None:
    """Of 10 bytes the last `buffered` may still be on their way; the link carries all, and the receiver has them last."""
    both = [[Op("nccl", comms=(0,)), Op("nccl", work=5.0)] for _ in (0, 1)]
    made = graph(both, [Comm("send", 10.0, ((0, 1),), "pp", 2)])
    plans = tuple(replace(plan, buffered=buffered) for plan in timed(made).plans)
    done = run(made, plans=plans)
    assert times(done, 0)[0] == (2, 2 + 1 + 10 - buffered)
    assert times(done, 1)[0] == (2, 13)
    assert times(done, 0)[1][0] == 14 - buffered
    assert done.bytes.carried.tolist() == [10.0]


def overlapped(**changes: Any) -> tuple[list[tuple[float, float]], Run]:
    """A kernel of 100 us that starts while a collective of 11 us alone (1 latency, 10 bytes) is under way."""
    made = graph([[Op("nccl", comms=(0,)), Op(work=100, host=2)]], [all_reduce((0,))])
    done = run(made, **changes)
    return times(done), done


def test_kernels_beside_a_collective_are_slower_while_it_runs() -> None:
    """From 4 to 13 us the kernel works at half speed: 4.5 of its 100 us are done, the rest takes 95.5."""
    assert overlapped()[0] == [(2, 13), (4, 104)]
    assert overlapped(slowdown=beside({0: 2.0}))[0] == [(2, 13), (4, 108.5)]
    assert overlapped(slowdown=beside({0: 2.0}), channels=0)[0] == [(2, 13), (4, 104)]


def test_a_transfer_beside_kernels_is_slower_while_they_run() -> None:
    """One byte goes alone from 3 to 4 us, the other nine beside the kernel, at half speed."""
    assert overlapped(contention=2.0)[0] == [(2, 22), (4, 104)]
    assert overlapped(contention=1.0)[0] == [(2, 13), (4, 104)]


def test_steps_from_rank_to_rank_take_longer_where_kernels_run() -> None:
    """0.5 of 1 us of latency are steps: beside a kernel they take 1.5 us where the factor is 3, the launch no longer."""
    ops = [Op(work=100), Op("nccl", comms=(0,), host=5)]
    made = graph([ops], [all_reduce((0,))])
    plans = tuple(replace(plan, hops=0.5 * US) for plan in timed(made).plans)
    side = {"plans": plans, "hops": 3.0, "exclusive": False}
    assert times(run(made, **side))[1] == (7, 7 + 1 + 0.5 * 2 + 10)
    alone = graph([ops[1:]], [all_reduce((0,))])
    assert times(run(alone, **side))[0] == (7, 18)


def test_a_transfer_is_not_beside_the_kernel_before_it_on_its_own_stream() -> None:
    """A copy out of the last gather's buffer, then the next gather: however kernels slow transfers, it is alone."""
    ops = [Op("nccl", work=10), Op("nccl", comms=(0,))]
    made = graph([ops], [all_reduce((0,))])
    alone = times(run(made))
    assert alone == [(2, 12), (13, 24)]
    assert times(run(made, contention=2.0)) == alone
    assert times(run(made, beside={0: 3.0})) == alone


def test_a_kernel_that_spins_leaves_the_gpu_to_others() -> None:
    """It neither slows nor is slowed by what runs beside it, nor does a collective wait for it to end."""
    assert overlapped(contention=2.0, slowdown=beside({0: 2.0}), idle=frozenset({0}))[
        0
    ] == [(2, 13), (4, 104)]
    made = graph([[Op(work=100), Op("nccl", comms=(0,), host=5)]], [all_reduce((0,))])
    assert times(run(made, idle=frozenset({0}))) == [(2, 102), (7, 18)]


def test_a_collective_waits_for_room_beside_a_running_kernel() -> None:
    """Launched while a kernel fills the GPU, it starts when that kernel ends."""
    made = graph([[Op(work=100), Op("nccl", comms=(0,), host=5)]], [all_reduce((0,))])
    assert times(run(made)) == [(2, 102), (102, 113)]


def two_collectives(one: str, other: str, **changes: Any) -> Run:
    """Two of 11 us alone, each on links and on a stream of its own; axes tell their communicators apart."""
    ops = [Op("nccl a", comms=(0,)), Op("nccl b", comms=(1,), host=3)]
    comms = [replace(all_reduce((0,)), axis=axis) for axis in (one, other)]
    made = graph([ops], comms)
    apart = [
        replace(plan, links=np.array([link]))
        for link, plan in enumerate(timed(made).plans)
    ]
    return run(made, plans=tuple(apart), bandwidth=np.full(2, 1 / US), **changes)


def test_collectives_of_one_communicator_run_one_after_the_other() -> None:
    """The second, on another stream, begins when the first has ended."""
    assert times(two_collectives("dp", "dp")) == [(2, 13), (13, 24)]


def test_communicators_run_side_by_side() -> None:
    """The second begins while the first is under way, and takes no longer where links are free."""
    assert times(two_collectives("dp", "pp")) == [(2, 13), (5, 16)]


def test_communicators_side_by_side_share_links() -> None:
    """On one link each has half of it while both are under way: all bytes are there when they would be in turns."""
    ops = [Op("nccl a", comms=(0,)), Op("nccl b", comms=(1,), host=3)]
    comms = [replace(all_reduce((0,)), axis=axis) for axis in ("dp", "pp")]
    assert times(run(graph([ops], comms))) == [(2, 20), (5, 23)]


def test_a_communicator_waits_for_room_beside_another() -> None:
    """Beside a kernel that fills the GPU it takes over SMs of its own predecessor, but none of another communicator."""

    def last(axis: str) -> tuple[float, float]:
        ops = [
            Op("nccl a", comms=(0,)),
            Op(work=30, host=3),
            Op("nccl b", comms=(1,), host=2),
        ]
        comms = [all_reduce((0,)), replace(all_reduce((0,)), axis=axis)]
        return times(run(graph([ops], comms)))[2]

    assert last("dp") == (13, 24)
    assert last("pp") == (35, 46)


@pytest.mark.parametrize("more", [0.0, 1e-20, 1e-15, -1e-15, 1e-13, 1e-9])
def test_a_kernel_may_end_just_when_one_collective_follows_another(more: float) -> None:
    """Two changes of a kernel's speed at the moment it ends are no error: the next kernel runs as if alone."""
    ops = [
        Op("nccl a", comms=(0,)),
        Op("nccl b", comms=(1,), host=3),
        Op(work=7, host=1),
        Op(work=7),
    ]
    made = graph([ops], [all_reduce((0,))] * 2)
    done = run(made, durations=np.array([7 * US + more]))
    assert times(done)[:2] == [(2, 13), (13, 24)]
    assert done.end[0][0, 2:] == pytest.approx(
        [13 * US + more, 21 * US + 2 * more], rel=1e-6
    )


@few
@given(programs(), st.floats(1.0, 3.0))
def test_interference_makes_nothing_shorter(made: OpGraph, factor: float) -> None:
    """No kernel is faster than alone, and no communication faster than latency and bytes."""
    done = run(made, 1, slowdown=lambda kernel, channels: factor, contention=factor)
    alone = timed(made).durations
    for p, start, end in zip(made.programs, done.start, done.end, strict=True):
        kernels = p.kind == 0
        took = (end - start)[0, kernels]
        assert (took >= alone[p.payload[kernels]] - 1e-11).all()
        assert (took <= alone[p.payload[kernels]] * factor + 1e-11).all()


def test_a_missing_peer_is_an_error_that_says_who_waits_for_what() -> None:
    """Rank, stream, operation, step, size, members and how many have come are all in the message."""
    made = graph(
        [[Op(work=1), Op("nccl", comms=(0,))], [Op(work=1)]], [all_reduce(size=4096)]
    )
    with pytest.raises(Stuck) as error:
        run(made)
    waits = "rank 0, stream nccl: operation 1 (all_reduce) of step 0 waits for peers: all_reduce of 4096 bytes in (0, 1): 1/2"
    assert waits in str(error.value)
    assert "rank 1" not in str(error.value)


def test_a_cycle_of_ranks_is_an_error_that_shows_both_sides() -> None:
    """Two ranks that call two collectives in opposite order on one stream wait for each other for ever."""
    ranks = [
        [Op("nccl", comms=(a,)), Op("nccl", comms=(b,))] for a, b in ((0, 1), (1, 0))
    ]
    with pytest.raises(Stuck) as error:
        run(graph(ranks, [all_reduce(size=100), all_reduce(size=200)]))
    assert "in a cycle:\n  rank" in str(error.value) and "not there: rank 1" in str(
        error.value
    )
    assert (
        "rank 0, stream nccl: operation 0 (all_reduce) of step 0 waits for peers: all_reduce of 100"
        in str(error.value)
    )
    assert (
        "rank 1, stream nccl: operation 0 (all_reduce) of step 0 waits for peers: all_reduce of 200"
        in str(error.value)
    )


def test_a_cycle_of_streams_is_an_error_that_names_the_operations() -> None:
    """Operations that wait for one another, and a host that waits for them, are named with their numbers."""
    ops = [
        Op("a", deps=(1,)),
        Op("b", deps=(0,)),
        Op("host", sync=True, deps=(1,)),
        Op("c"),
    ]
    with pytest.raises(Stuck) as error:
        run(graph([ops]))
    for words in (
        "stream a: operation 0 (kernel) of step 0 waits for operations 1 (kernel)",
        "stream b: operation 1 (kernel) of step 0 waits for operations 0 (kernel)",
        "stream host: operation 2 (synchronize) of step 0 waits for operations 1 (kernel)",
        "stream c: operation 3 (kernel) of step 0 waits for its host thread to launch it",
    ):
        assert words in str(error.value)


def test_events_are_counted() -> None:
    """Twice the steps cost about twice the events; the counts of a run are the same each time.

    One rank alone moves the clock without any: two that end at the same moment take turns.
    """
    made = graph([[Op(work=1)] * 50] * 2)
    one, again, two = (run(made, steps).events for steps in (1, 1, 2))
    assert one == again and one < two <= 2 * one


@few
@given(programs())
def test_moving_the_clock_without_an_event_changes_nothing(made: OpGraph) -> None:
    """A stream that nobody disturbs needs no event for its own pauses and kernels: all times are those with events."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Clock, "skip", lambda clock, seconds: False)
        with_events = run(made, steps=3)
    without = run(made, steps=3)
    assert without.events <= with_events.events
    for column in ("launch", "start", "end"):
        pairs = zip(getattr(without, column), getattr(with_events, column), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)
    assert without.ready == with_events.ready


@few
@given(programs())
def test_launch_times_follow_from_host_costs_and_ends(made: OpGraph) -> None:
    """Of an operation: its host's cost after the one before, or after the end that left room for it in the queue."""
    done, limit = run(made, steps=3), made.launch_limit
    for program, launch, end in zip(made.programs, done.launch, done.end, strict=True):
        clock, n = 0.0, len(program)
        for g, (launched, ended) in enumerate(
            zip(launch.ravel(), end.ravel(), strict=True)
        ):
            freed = end.ravel()[g - limit] if g >= limit else 0.0
            clock = max(clock, freed) + program.host[g % n]
            assert launched == clock
            clock = ended if program.kind[g % n] == SYNC else clock


@few
@given(programs(), st.booleans())
def test_when_launch_times_are_worked_out_changes_nothing(
    made: OpGraph, in_order: bool
) -> None:
    """With every kernel that ends, as the thread does, or when much can be issued: all times are the same."""
    yielding = frozenset(range(len(made.kernels)) if in_order else ())
    lazily = run(made, steps=3, yielding=yielding)

    def one_by_one(host: HostThread, queued: int, is_sync: bool) -> Event:
        return host.ended(queued)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HostThread, "_room", one_by_one)
        at_once = run(made, steps=3, yielding=yielding)
    for column in ("launch", "start", "end"):
        pairs = zip(getattr(lazily, column), getattr(at_once, column), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("in_order", [True, False])
def test_what_was_launched_first_takes_the_sms(in_order: bool) -> None:
    """A reduction behind a kernel and the next kernel could start together: at 13 us, when the gap is over.

    From one queue the reduction comes first; else the kernel does, and leaves no SM until it ends.
    """
    ops = [
        [Op("compute", 10.0), Op("nccl", comms=(0,), deps=(0,)), Op("compute", 30.0)]
        for _ in range(2)
    ]
    yielding = frozenset({0, 1} if in_order else ())
    done = run(graph(ops, [all_reduce()]), idle=frozenset(), yielding=yielding)
    (_, before), (reduced, _), (started, ended) = times(done)
    assert before == pytest.approx(12.0)
    assert started == pytest.approx(13.0)
    assert reduced == pytest.approx(13.0 if in_order else ended)
