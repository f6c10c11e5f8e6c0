"""Ranks that hold a job up, found again in the dumps of programs that a small interpreter runs until they block."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.validation.doctor.stuck import Dump, delays, dump_of

WORLD = 6
GROUPS = {"0": range(WORLD), "1": (0, 2, 4), "2": (1, 3, 5), "3": (0, 1), "4": (4, 5)}
Program = list[tuple[str, int]]


def entry(group: str, number: int, ended: bool, **other: Any) -> dict[str, Any]:
    return {
        "process_group": (group, f"group {group}"),
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": number,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": "completed" if ended else "started",
        **other,
    }


def dump(rank: int, entries: list[dict[str, Any]]) -> Dump:
    ranks = {name: {"ranks": str(list(members))} for name, members in GROUPS.items()}
    content = {"pg_config": ranks, "entries": entries}
    made = dump_of(Path(f"nccl_trace_rank_{rank}"), content)
    assert made is not None
    return made


def run(calls: list[str], stalls: int, before: int) -> list[Dump] | None:
    """Dumps after all ranks called the groups in this order, and one stopped; None if that keeps nobody waiting.

    A rank blocks in each collective until every member is in it: a program of synchronous calls.
    """
    mine = {
        rank: [call for call in calls if rank in GROUPS[call]] for rank in range(WORLD)
    }
    mine[stalls] = mine[stalls][:before]
    done = dict.fromkeys(range(WORLD), 0)  # calls that have ended

    def inside(rank: int, call: str, number: int) -> bool:
        at = done[rank]
        return (
            mine[rank][at : at + 1] == [call] and mine[rank][:at].count(call) == number
        )

    moved = True
    while moved:
        moved = False
        for call, members in GROUPS.items():
            numbers = {mine[rank][: done[rank]].count(call) for rank in members}
            if len(numbers) == 1 and all(
                inside(r, call, min(numbers)) for r in members
            ):
                done |= {rank: done[rank] + 1 for rank in members}
                moved = True
    if all(done[rank] == len(mine[rank]) for rank in range(WORLD)):
        return None
    dumps = []
    for rank, own in mine.items():
        begun = own[: done[rank] + 1]
        entries = [
            entry(call, begun[: at + 1].count(call), at < done[rank])
            for at, call in enumerate(begun)
        ]
        dumps.append(dump(rank, entries))
    return dumps


@given(
    st.lists(st.sampled_from([*GROUPS]), min_size=1, max_size=12),
    st.integers(0, WORLD - 1),
    st.integers(0, 12),
)
def test_the_rank_that_stopped_is_named_and_no_other(
    calls: list[str], stalls: int, before: int
) -> None:
    """However its absence spreads from group to group: those that wait for those that wait are not blamed."""
    dumps = run(calls, stalls, before)
    if dumps is None:
        return
    found = delays(dumps)
    assert found and all(one.hangs for one in found)
    assert {rank for one in found for rank in one.ranks} == {stalls}
    assert all(stalls not in one.waiting for one in found)
    # The collective that they name is the next of the group that it did not enter.
    own = [call for call in calls if stalls in GROUPS[call]][:before]
    for one in found:
        group = one.group.split()[2]
        assert one.number == own.count(group) + 1


def timed(lateness: dict[int, float], count: int = 8) -> list[Dump]:
    """Dumps of collectives of 2 ms, in which each rank waits for the one that comes last."""
    latest = max(lateness.values())
    return [
        dump(
            rank,
            [
                entry("0", number, True, duration_ms=2.0 + latest - lateness[rank])
                for number in range(1, count + 1)
            ],
        )
        for rank in range(WORLD)
    ]


@pytest.mark.parametrize("late", range(WORLD))
def test_a_rank_that_comes_last_is_named(late: int) -> None:
    """It is the one that waits least; 3 of the 5 ms of the others are waiting."""
    (found,) = delays(timed({rank: 3.0 * (rank == late) for rank in range(WORLD)}))
    assert found.ranks == (late,) and not found.hangs
    assert "8 of 8" in found.what and "60.0 %" in found.what


def test_nobody_is_named_where_ranks_differ_by_little_or_seldom() -> None:
    assert not delays(timed({rank: 0.01 * rank for rank in range(WORLD)}))
    assert not delays(
        timed({rank: 3.0 * (rank == 2) for rank in range(WORLD)}, count=3)
    )


def test_a_message_that_nobody_answers_blames_its_peer() -> None:
    """Stages 4 and 5 of group 4: rank 4 awaits a message, so that it did not enter the collective of all."""
    message = {"profiling_name": "nccl:recv 0<-1", "is_p2p": True, "p2p_seq_id": 7}
    dumps = [dump(rank, [entry("0", 1, False)]) for rank in range(4)]
    dumps += [dump(4, [entry("4", 0, False, **message)]), dump(5, [])]
    found = delays(dumps)
    assert {one.ranks for one in found} == {(5,)}
    assert any("did not send message 7" in one.what for one in found)


@pytest.mark.parametrize(
    ("change", "blamed", "words"),
    [
        ({"profiling_name": "nccl:broadcast"}, (3,), "broadcast where 5 ranks"),
        ({"input_sizes": [[9]]}, (3,), "[[9]]"),
        ({"state": "scheduled"}, (3,), "did not begin it"),
        ({}, (), "the network or a GPU"),
    ],
)
def test_a_collective_that_all_entered(
    change: dict[str, Any], blamed: tuple[int, ...], words: str
) -> None:
    """Another operation, other shapes, a GPU that is busy; where all agree no rank is blamed."""
    dumps = [
        dump(rank, [entry("0", 1, False, **(change if rank == 3 else {}))])
        for rank in range(WORLD)
    ]
    (found,) = delays(dumps)
    assert found.ranks == blamed and words in found.what


def test_a_rank_without_a_dump_is_named() -> None:
    dumps = [dump(rank, [entry("0", 1, False)]) for rank in range(WORLD - 1)]
    (found,) = delays(dumps)
    assert found.ranks == (WORLD - 1,) and "no dump" in found.what


def test_the_commands_name_it(tmp_path: Path) -> None:
    """Exit 1 with the rank, in a cluster's answer too; dumps of a job that runs end with 0, other files with 2."""
    ranks = {"0": {"name": "0", "ranks": "[0, 1]"}}
    last = {0: 2, 1: 1}
    for rank, number in last.items():
        entries = [entry("0", n, n < 2) for n in range(1, number + 1)]
        content = {"version": "2.10", "pg_config": ranks, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    paths = [str(tmp_path / f"nccl_trace_rank_{rank}") for rank in last]
    for command in (["hang"], ["cluster", "dgx-h100"]):
        made = CliRunner().invoke(cli.main, ["doctor", *command, *paths, "--json"])
        table = json.loads(made.stdout)
        assert made.exit_code == 1 and not table["good"], made.output
        assert table["delays"][0]["ranks"] == [1]
    fine = CliRunner().invoke(cli.main, ["doctor", "hang", paths[1]])
    assert fine.exit_code == 0 and "none holds" in fine.output
    (tmp_path / "a.log").write_text('{"coll_perf": {}}\n')
    other = CliRunner().invoke(cli.main, ["doctor", "hang", str(tmp_path / "a.log")])
    assert other.exit_code == 2


def test_numbers_rise_in_the_examples() -> None:
    """The interpreter itself: without a stop nobody waits."""
    assert run([*GROUPS] * 3, 0, 99) is None
    assert all(a <= b for a, b in pairwise(sorted(GROUPS)))


OLD = "[rank{0}]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank {0}] Exception detected by watchdog at work: 9, "
NEW = "[rank{0}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 1 PG GUID 1(dp) Rank {0}] failure detected by watchdog, "
ENDS = {
    OLD: "last enqueued NCCL work: {1}, last completed NCCL work: 8.",
    NEW: "last enqueued work: {1}, last completed work: 8",
}


@pytest.mark.parametrize("beginning", [OLD, NEW])
@pytest.mark.parametrize("late", [None, 2])
def test_a_watchdogs_log_names_the_rank_that_enqueued_less(
    beginning: str, late: int | None, tmp_path: Path
) -> None:
    """In the words of old and new releases; where all enqueued the same no rank is blamed."""
    timed_out = (
        "[Rank 0] Watchdog caught: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1)"
    )
    lines = [
        (beginning + ENDS[beginning]).format(rank, 8 if rank == late else 11)
        for rank in range(4)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join([timed_out, *lines]))
    made = CliRunner().invoke(cli.main, ["doctor", "hang", str(path), "--json"])
    (found,) = json.loads(made.stdout)["delays"]
    assert made.exit_code == 1 and found["number"] == 9
    assert found["ranks"] == ([] if late is None else [late])
    assert "allreduce" in found["what"]
