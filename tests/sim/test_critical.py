"""The critical path of a run: shares add up, and it goes where the time is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.path_walk import critical_path
from prestep.sim.engine.engine import execute
from tests.sim.graphs import US, Op, all_reduce, graph, timed


def path_of(
    ranks: list[list[Op]],
    comms: list[object] | None = None,
    steps: int = 1,
    limit: int = 1024,
) -> CriticalPath:
    made = graph(ranks, comms or [], limit)  # type: ignore[arg-type]
    run = execute(timed(made), steps)
    ends = [max(end[step].max() for end in run.end) for step in range(steps)]
    return critical_path(made, run, ends[-2] if steps > 1 else 0.0, ends[-1])


def seconds(path: CriticalPath, kind: str) -> float:
    return sum(s.duration for s in path.segments if s.kind == kind)


def whole(path: CriticalPath) -> None:
    """No holes, and shares that add up to one."""
    assert sum(part["seconds"] for part in path.parts()) == pytest.approx(
        path.length, abs=1e-12
    )
    for one, other in pairwise(path.segments):
        assert other.start == pytest.approx(one.end, abs=1e-12)


def test_one_stream_is_its_own_path() -> None:
    """Kernels behind each other are all on it, with the gaps between them and the first launch."""
    path = path_of([[Op(work=5.0), Op(work=7.0)]])
    assert seconds(path, "kernel") == pytest.approx(12 * US)
    assert seconds(path, "waiting") == pytest.approx(3 * US)
    whole(path)


def test_it_goes_to_the_rank_that_arrived_last() -> None:
    """A collective begins with its last rank, whose kernels are on the path, not those that waited."""
    ranks = [
        [Op(work=w), Op("comm", deps=(0,), comms=(0,)), Op(work=1.0, deps=(1,))]
        for w in (5.0, 50.0)
    ]
    path = path_of(ranks, [all_reduce()])
    kernels = {
        (s.rank, round(s.duration / US)) for s in path.segments if s.kind == "kernel"
    }
    assert (1, 50) in kernels and (0, 5) not in kernels
    assert seconds(path, "communication") == pytest.approx(11 * US)
    assert {s.axis for s in path.segments if s.kind == "communication"} == {"dp"}
    whole(path)


def test_a_slow_host_is_the_path() -> None:
    """Where launches come later than the GPU could start, the path is the host's."""
    path = path_of([[Op(work=1.0, host=20.0), Op(work=1.0, host=20.0)]])
    assert seconds(path, "host") == pytest.approx(40 * US)
    assert seconds(path, "kernel") == pytest.approx(1 * US)
    whole(path)


def test_a_full_queue_and_a_synchronisation_lead_back_to_the_gpu() -> None:
    """A host that waited for the GPU hands the path to what it waited for."""
    synced = path_of(
        [[Op(work=30.0), Op(sync=True, deps=(0,)), Op(work=2.0, host=3.0)]]
    )
    assert seconds(synced, "kernel") == pytest.approx(32 * US)
    assert seconds(synced, "host") == pytest.approx(3 * US)
    queued = path_of([[Op(work=30.0), Op(work=2.0, host=3.0)]], limit=1)
    assert seconds(queued, "kernel") == pytest.approx(32 * US)
    whole(synced)
    whole(queued)


def test_only_the_last_step_counts() -> None:
    """Of several steps the path covers the last."""
    path = path_of([[Op(work=5.0)]], steps=3)
    assert path.length == pytest.approx(6 * US)
    whole(path)


@given(
    st.lists(st.tuples(*[st.floats(0.5, 40.0)] * 3), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(2, 8),
)
def test_shares_always_add_up(
    rows: list[tuple[float, float, float]], steps: int, limit: int
) -> None:
    """Whatever ran: the path has no holes, reaches from the step's begin to its end, and no part is negative."""
    ranks = [
        [
            op
            for i, row in enumerate(rows)
            for op in (
                Op(work=round(row[rank], 1), host=round(row[2] / 4, 1)),
                Op("comm", deps=(2 * i,), comms=(i,)),
            )
        ]
        for rank in (0, 1)
    ]
    path = path_of(ranks, [all_reduce() for _ in rows], steps, limit)
    whole(path)
    assert all(s.duration > 0 for s in path.segments)
