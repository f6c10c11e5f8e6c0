"""Laws of pipeline schedules and of what the runtime issues for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError, PrestepError
from prestep.workloads import schedules
from prestep.workloads.schedules import (
    Action,
    find,
    placement,
    rank_of_stages,
    schedule,
)
from prestep.workloads.schedules.runtime import (
    Batch,
    Compute,
    Hook,
    Recv,
    Send,
    Wait,
    executed,
    operations,
)
from prestep.workloads.schedules.timetable import render, timetable

GOLDENS = Path(__file__).parent / "goldens"
NAMES = schedules.names()
EQUAL = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}

sizes = st.tuples(
    st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 16), st.integers(1, 4)
)


def legal(
    name: str, ranks: int, microbatches: int, chunks: int
) -> tuple[str, int, int, int]:
    """The nearest size that the schedule takes."""
    chunks = getattr(find(name), "CHUNKS", chunks)
    if name == "1f1b":
        microbatches = max(microbatches, ranks)
    elif name == "dualpipe":
        microbatches = max(microbatches, 2 * ranks)
    elif name in ("interleaved", "zero-bubble"):
        microbatches -= microbatches % max(1, microbatches // ranks)
    return name, ranks, microbatches, chunks


@given(sizes)
def test_every_action_once_in_a_legal_order(size: tuple[str, int, int, int]) -> None:
    """Each stage runs each microbatch's F and B (or I and W) once, on its own rank, and the whole can finish."""
    name, ranks, microbatches, chunks = legal(*size)
    rows = schedule(name, ranks, microbatches, chunks)
    seen = Counter(action for row in rows for action in row)
    assert set(seen.values()) == {1}
    for stage in range(ranks * chunks):
        for microbatch in range(microbatches):
            kinds = "".join(
                kind for kind in "FBIW" if Action(stage, kind, microbatch) in seen
            )
            assert kinds in ("FB", "FIW")
    owned = placement(find(name).PLACEMENT, ranks, chunks)
    assert [{action.stage for action in row} for row in rows] == [
        set(stages) for stages in owned
    ]
    assert sum(map(len, timetable(rows))) == sum(map(len, rows))


@given(sizes)
def test_runtime_issues_the_schedule(size: tuple[str, int, int, int]) -> None:
    """The computation in a rank's operations is its row of the schedule; hooks are left out unless asked for."""
    shape = legal(*size)
    rows = schedule(*shape)
    for row, issued in zip(rows, operations(*shape), strict=True):
        assert (
            tuple(
                Action(op.stage, op.kind, op.microbatch)
                for op in issued
                if isinstance(op, Compute)
            )
            == row
        )
        assert not any(isinstance(op, Hook) for op in issued)
    for issued in operations(*shape, hooks=True):
        reduced = [
            op.stage
            for op in issued
            if isinstance(op, Hook) and op.kind == "REDUCE_GRAD"
        ]
        assert len(reduced) == shape[3] == len(set(reduced))


@given(sizes)
def test_sends_match_receives_one_to_one(size: tuple[str, int, int, int]) -> None:
    """Between two ranks the n-th send is the n-th receive (NCCL matches by order), and nothing goes to oneself."""
    name, ranks, microbatches, chunks = legal(*size)
    out: dict[tuple[int, int], list[object]] = {}
    into: dict[tuple[int, int], list[object]] = {}
    for rank, issued in enumerate(operations(name, ranks, microbatches, chunks)):
        for op in (
            op for batch in issued if isinstance(batch, Batch) for op in batch.ops
        ):
            assert op.peer != rank
            if isinstance(op, Send):
                out.setdefault((rank, op.peer), []).append(op.key)
            else:
                into.setdefault((op.peer, rank), []).append(op.key)
    assert out == into
    owner = rank_of_stages(find(name).PLACEMENT, ranks, chunks)
    borders = sum(a != b for a, b in pairwise(owner))
    assert sum(map(len, out.values())) == 2 * borders * microbatches


@given(sizes)
def test_every_result_is_waited_for_before_use(size: tuple[str, int, int, int]) -> None:
    """A stage computes on what it received only after waiting for it, and every batch is waited for by the end."""
    name, ranks, microbatches, chunks = legal(*size)
    owner = rank_of_stages(find(name).PLACEMENT, ranks, chunks)
    for rank, issued in enumerate(operations(name, ranks, microbatches, chunks)):
        batches = {op.handle: op for op in issued if isinstance(op, Batch)}
        assert list(batches) == list(range(len(batches)))
        ready: set[tuple[str, int, int]] = set()
        waited = set()
        for op in issued:
            if isinstance(op, Wait):
                waited.add(op.handle)
                ready |= {
                    (r.what, r.stage, r.microbatch)
                    for r in batches[op.handle].ops
                    if isinstance(r, Recv)
                }
            elif isinstance(op, Compute) and op.kind != "W":
                source = op.stage - 1 if op.kind == "F" else op.stage + 1
                if 0 <= source < len(owner) and owner[source] != rank:
                    assert (
                        "F" if op.kind == "F" else "B",
                        op.stage,
                        op.microbatch,
                    ) in ready
        assert waited == set(batches)


@given(sizes)
def test_no_deadlock_with_rendezvous(size: tuple[str, int, int, int]) -> None:
    """One in-order communication stream per rank and sends that block until received still finish."""
    assert play(operations(*legal(*size))) == []


def play(rows: tuple[tuple[object, ...], ...]) -> list[object]:
    """Run two in-order streams per rank; returns the batches that can never end."""
    compute = [[op for op in row if isinstance(op, Compute | Wait)] for row in rows]
    network = []
    for row in rows:
        before, queue = 0, []
        for op in row:
            if isinstance(op, Batch):
                queue.append((op, before))
            before += isinstance(op, Compute | Wait)
        network.append(queue)
    at, head = [0] * len(rows), [0] * len(rows)
    moved: set[tuple[int, object]] = set()
    progress = True
    while progress:
        progress = False
        for rank, stream in enumerate(compute):
            while at[rank] < len(stream):
                op = stream[at[rank]]
                if isinstance(op, Wait) and head[rank] <= op.handle:
                    break
                at[rank], progress = at[rank] + 1, True
        # What each rank offers now: the unmatched transfers of the batch at the head of its stream.
        offers = [
            {(type(op), op.key): op for op in network[rank][head[rank]][0].ops}
            if head[rank] < len(network[rank])
            and at[rank] >= network[rank][head[rank]][1]
            else {}
            for rank in range(len(rows))
        ]
        for rank, offer in enumerate(offers):
            for (kind, key), op in offer.items():
                other = Recv if kind is Send else Send
                if (rank, op) not in moved and (other, key) in offers[op.peer]:
                    moved |= {(rank, op), (op.peer, offers[op.peer][other, key])}
                    progress = True
        for rank, offer in enumerate(offers):
            if offer and all((rank, op) in moved for op in offer.values()):
                head[rank], progress = head[rank] + 1, True
    return [
        queue[start][0]
        for queue, start in zip(network, head, strict=True)
        if start < len(queue)
    ]


def in_flight(rows: Sequence[Sequence[Action]]) -> tuple[int, ...]:
    """The most (stage, microbatch) pairs whose activations each rank holds at once: F has run, B or W has not."""
    peaks = []
    for row in rows:
        held = peak = 0
        for action in row:
            held += {"F": 1, "I": 0}.get(action.kind, -1)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


@given(st.integers(1, 8), st.integers(0, 16))
def test_1f1b_holds_few_microbatches(ranks: int, more: int) -> None:
    """Stage s of 1F1B holds min(M, P - s) microbatches at most; GPipe holds all of them."""
    microbatches = ranks + more
    assert in_flight(schedule("1f1b", ranks, microbatches)) == tuple(
        range(ranks, 0, -1)
    )
    assert in_flight(schedule("gpipe", ranks, microbatches)) == (microbatches,) * ranks


@given(st.sampled_from(("zero-bubble", "zbv")), st.integers(1, 6), st.integers(1, 4))
def test_zero_bubble_schedules_hold_no_more_than_plain_1f1b_at_its_fullest(
    name: str, ranks: int, rounds: int
) -> None:
    """ZB1P with v chunks holds v P chunks at most, ZBV 2 P."""
    assert max(in_flight(schedule(name, ranks, 2 * ranks * rounds, 2))) <= 2 * ranks


def idle(
    name: str, ranks: int, microbatches: int, chunks: int, slots: Mapping[str, float]
) -> float:
    """Time of the step less the work of one rank, in the unit of `slots`."""
    times = timetable(schedule(name, ranks, microbatches, chunks), slots)
    end = max(start + slots[action.kind] for row in times for start, action in row)
    return end - microbatches * chunks * (slots["F"] + slots["B"])


@given(st.integers(1, 6), st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 3))
def test_ideal_bubbles(ranks: int, times: tuple[int, int, int], chunks: int) -> None:
    """Idle time per rank is (P-1)(F+B) for GPipe, 1F1B and, per chunk, interleaved; (P-1) max(F, I, F+I-W) for ZB1P."""
    forward, inputs, weights = times
    slots = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    for name, held in (("gpipe", 1), ("1f1b", 1), ("interleaved", chunks)):
        assert idle(name, ranks, 3 * ranks, held, slots) == (ranks - 1) * sum(times), (
            name
        )
    assert idle("zero-bubble", ranks, 3 * ranks, chunks, slots) == (ranks - 1) * max(
        forward, inputs, forward + inputs - weights
    )


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_equal_thirds(ranks: int) -> None:
    """With F = I = W a rank of ZBV waits only for its start: P-1 chunk forwards in all."""
    assert idle("zbv", ranks, 3 * ranks, 2, EQUAL) == ranks - 1


def test_zbv_has_no_idle_slot_inside() -> None:
    """With F = I = W no rank of ZBV idles between its first and its last action."""
    for row in timetable(schedule("zbv", 4, 12), EQUAL):
        starts = [start for start, _ in row]
        assert starts == [starts[0] + index for index in range(len(row))]


def test_batches_are_those_of_a_recorded_run() -> None:
    """Batches per rank and step are those in the Kineto traces of torch 2.11 with 4 stages and 8 microbatches."""
    counted = {
        name: [
            sum(isinstance(op, Batch) for op in row) for row in operations(name, 4, 8)
        ]
        for name in ("1f1b", "gpipe")
    }
    assert counted == {"1f1b": [11, 21, 19, 9], "gpipe": [16, 32, 32, 16]}


def test_1f1b_fuses_each_send_with_the_opposite_receive() -> None:
    """In the steady state the middle stage's batches are a send and a receive with one neighbour."""
    pairs = [
        op
        for op in operations("1f1b", 4, 8)[1]
        if isinstance(op, Batch) and len(op.ops) == 2
    ]
    assert len(pairs) == 11
    assert all(
        isinstance(op.ops[0], Send) and isinstance(op.ops[1], Recv) for op in pairs
    )
    assert all(len({transfer.peer for transfer in op.ops}) == 1 for op in pairs)


def test_neighbours_on_one_rank_exchange_nothing() -> None:
    """The turn of a V, and a pipeline of one rank, need no transfer."""
    keys = {
        op.key
        for row in operations("zbv", 2, 3)
        for b in row
        if isinstance(b, Batch)
        for op in b.ops
    }
    assert not any(key[:2] in (("F", 1), ("B", 2)) for key in keys)
    for name in NAMES:
        assert not any(
            isinstance(op, Batch | Wait) for op in operations(*legal(name, 1, 4, 2))[0]
        )


def test_placements() -> None:
    """Loop: rank r holds r, r + P, ...; V: the stages turn back at the last rank."""
    assert placement("loop", 3, 2) == ((0, 3), (1, 4), (2, 5))
    assert placement("v", 3, 2) == ((0, 5), (1, 4), (2, 3))
    assert placement("v", 2, 3) == ((0, 3, 4), (1, 2, 5))
    with pytest.raises(PrestepError):
        placement("spiral", 2, 2)


def test_first_stage_runs_its_whole_backward_as_w() -> None:
    """Stage 0 needs no input gradient: PyTorch skips its I and its W is a full backward."""
    assert [executed(0, kind) for kind in "FBIW"] == ["F", "B", "", "B"]
    assert [executed(3, kind) for kind in "FBIW"] == list("FBIW")


def test_wrong_sizes_are_mistakes_with_their_key() -> None:
    """What torch refuses is refused, naming the key; several mistakes come together."""
    with pytest.raises(
        InputError, match=r"parallel\.vpp: found 2, expected 1 for the schedule 1f1b"
    ):
        schedule("1f1b", 4, 8, 2)
    with pytest.raises(
        InputError, match=r"training\.microbatches: found 2, expected at least 4"
    ):
        schedule("1f1b", 4, 2)
    with pytest.raises(InputError, match="a multiple of 2"):
        schedule("interleaved", 2, 5, 2)
    with pytest.raises(InputError, match="at least 8"):
        schedule("dualpipe", 4, 7)
    with pytest.raises(InputError, match='did you mean "zero-bubble"'):
        schedule("zero-buble", 4, 8)
    assert len(schedules.check("zbv", 0, 0, 3)) == 3


def test_names_have_aliases() -> None:
    """A schedule is found by its name, with underscores for dashes, or by its file."""
    assert NAMES == (
        "1f1b",
        "dualpipe",
        "gpipe",
        "interleaved",
        "v-half",
        "v-min",
        "zbv",
        "zero-bubble",
    )
    assert find("zero_bubble") is find("zero-bubble")
    assert find("one_f_one_b") is find("1f1b")


def test_impossible_rows_say_who_waits_for_what() -> None:
    """Rows that wait for each other raise and name the actions."""
    rows = (
        (Action(0, "B", 0), Action(0, "F", 0)),
        (Action(1, "F", 0), Action(1, "B", 0)),
    )
    with pytest.raises(
        PrestepError, match="rank 0 is at 0B0, which waits for 0F0 and 1I0"
    ):
        timetable(rows)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "chunks"),
    [
        ("gpipe", 4, 4, 1),
        ("1f1b", 4, 6, 1),
        ("interleaved", 4, 4, 2),
        ("zero-bubble", 4, 6, 1),
        ("zero-bubble", 2, 4, 2),
        ("zbv", 3, 5, 2),
        ("dualpipe", 2, 5, 2),
    ],
)
def test_golden_tables(name: str, ranks: int, microbatches: int, chunks: int) -> None:
    """Small schedules look as they are drawn in goldens/."""
    drawn = (GOLDENS / f"{name}-{ranks}x{microbatches}x{chunks}.txt").read_text()
    assert render(schedule(name, ranks, microbatches, chunks)) == drawn
