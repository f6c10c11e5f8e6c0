"""The operation graph: what every lowered scenario keeps to, and how ranks find their communication."""

from __future__ import annotations

from collections import Counter

import pytest

from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Rendezvous
from tests.sample import together
from tests.sim.graphs import Op, all_reduce, graph
from tests.sim.test_laws import WAYS, done

every_way = pytest.mark.parametrize("way", WAYS)


def test_ranks_that_give_one_key_get_one_communication() -> None:
    """The first to join makes it; other keys make others, numbered in order."""
    meet = Rendezvous()
    first = meet.join(("dp", 0), "all_reduce", 8.0, [(0, 1)], "dp", 2)
    other = meet.join(("dp", 1), "all_gather", 4.0, [[0, 1], [2, 3]], "dp", 1)
    assert (
        first,
        meet.join(("dp", 0), "all_reduce", 8.0, [(0, 1)], "dp", 2),
        other,
    ) == (0, 0, 1)
    assert [(c.op, c.groups) for c in meet.comms] == [
        ("all_reduce", ((0, 1),)),
        ("all_gather", ((0, 1), (2, 3))),
    ]


def test_a_graph_counts_the_operations_of_all_ranks() -> None:
    """Kernels, communications and waits of the host alike."""
    ops = [Op(), Op("nccl", comms=(0,)), Op("host", sync=True)]
    assert graph([ops, ops[:2]], [all_reduce()]).operations == 5


@every_way
def test_columns_are_equally_long_and_point_into_their_tables(way: str) -> None:
    """A payload is a row of the kernels or of the program's parts; streams and phases have names."""
    made = done(way).lowered.graph
    for p in made.programs:
        columns = (
            p.kind,
            p.stream,
            p.payload,
            p.host,
            p.deps,
            p.phase,
            p.layer,
            p.microbatch,
            p.names,
        )
        assert {len(column) for column in columns} == {len(p)}
        assert set(p.kind.tolist()) <= {KERNEL, COMM, SYNC}
        assert (p.payload >= 0).all() and (
            p.payload[p.kind == KERNEL] < len(made.kernels)
        ).all()
        assert sorted(p.payload[p.kind == COMM].tolist()) == list(range(len(p.parts)))
        assert (p.stream >= 0).all() and (p.stream < len(made.streams)).all()
        assert (p.phase >= 0).all() and (p.phase < len(made.phases)).all()
        assert (p.host >= 0).all()


@together("way", WAYS)
def test_an_operation_waits_for_earlier_ones_only(way: str) -> None:
    """Of this step those issued before it, of the step before any: so one rank alone cannot be stuck."""
    for p in done(way).lowered.graph.programs:
        assert all(-len(p) <= d < i for i, deps in enumerate(p.deps) for d in deps)


@together("way", WAYS)
def test_as_many_operations_arrive_as_a_communication_waits_for(way: str) -> None:
    """No communication is left over, and none gets more than its arrivals."""
    made = done(way).lowered.graph
    arrived = Counter(c for p in made.programs for part in p.parts for c in part)
    assert dict(arrived) == {c: x.arrivals for c, x in enumerate(made.comms)}


@together("way", WAYS)
def test_every_rank_is_simulated_or_represented_once(way: str) -> None:
    """The simulated ranks stand for all ranks of the layout, each for itself among others."""
    d = done(way)
    made = d.lowered.graph
    assert set(made.represents) == {p.rank for p in made.programs}
    assert sorted(r for members in made.represents.values() for r in members) == list(
        range(d.lowered.layout.world)
    )
    assert all(rank in members for rank, members in made.represents.items())
