"""Reading Kineto traces of any age, and saying what is wrong with one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.workloads import traces
from prestep.workloads.traces import chrome
from tests.workloads.traces import synthetic


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    columns = [
        "kind",
        "name",
        "stream",
        "start",
        "end",
        "bytes",
        "collective",
        "group",
        "correlation",
        "shape",
    ]
    return traces.read([path])[0].spans.select(columns).to_pylist()  # type: ignore[no-any-return]


def test_collectives_have_their_metadata(tmp_path: Path) -> None:
    """A collective has its operation, group and bytes; a kernel its operator's shapes."""
    found = rows(write(tmp_path / "t.json", synthetic.trace(1)))
    talks = [row for row in found if row["kind"] == "kernel" and row["collective"]]
    assert {(row["collective"], row["group"], row["bytes"]) for row in talks} == {
        ("all_reduce", "0:0,1,2,3", 2.0 * synthetic.SIZE)
    }
    assert {row["shape"] for row in found if "gemm" in row["name"]} == {
        "[[2048, 2048], [2048, 2048]]"
    }
    assert len(talks) == synthetic.LAYERS


def test_all_spellings_are_one(tmp_path: Path) -> None:
    """A list at the root, ids as text, old categories and compression change nothing in the table."""
    plain = synthetic.trace(0)
    expected = rows(write(tmp_path / "plain.json", plain))
    old = {
        "kernel": "Kernel",
        "cuda_runtime": "Runtime",
        "cpu_op": "Operator",
        "user_annotation": "user_annotation",
    }
    events = json.loads(json.dumps(plain["traceEvents"]))
    for event in events:
        event["cat"] = old[event["cat"]]
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
        for key in ("correlation", "stream", "External id"):
            if key in event["args"]:
                event["args"][key] = str(event["args"][key])
    (tmp_path / "old.json.gz").write_bytes(gzip.compress(json.dumps(events).encode()))
    assert rows(tmp_path / "old.json.gz") == expected


def test_a_large_file_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read piece by piece is what is read at once."""
    path = write(
        tmp_path / "t.json", synthetic.trace(0) | {"traceName": 'a "quoted\\" }] name'}
    )
    expected = rows(path)
    monkeypatch.setattr(chrome, "PIECE", 1500)
    monkeypatch.setattr(chrome.read, "__defaults__", (100,))
    assert rows(path) == expected


def test_dropped_events_are_counted(tmp_path: Path) -> None:
    """Events without a row are in the table of what was dropped, with the reason."""
    made = synthetic.trace(0)
    made["traceEvents"] += [
        {"ph": "i", "name": "x", "ts": 1},
        {"ph": "X", "cat": "overhead", "name": "o", "ts": 1, "dur": 1, "args": {}},
    ]
    dropped = traces.read([write(tmp_path / "t.json", made)])[0].dropped.to_pylist()
    assert {"rank": 0, "what": "overhead", "why": "not used", "count": 1} in dropped


def test_negative_durations_are_repaired_and_counted(tmp_path: Path) -> None:
    """A negative duration becomes 0, and the recording says how often."""
    made = synthetic.trace(0)
    made["traceEvents"][0]["dur"] = -3.0
    assert traces.read([write(tmp_path / "t.json", made)])[0].repaired == {
        "negative duration taken as 0": 1
    }


def test_ranks_come_from_names_where_files_do_not_say(tmp_path: Path) -> None:
    """A file without distributedInfo has the rank of its name."""
    for rank in (0, 3):
        made = synthetic.trace(rank)
        del made["distributedInfo"]
        write(tmp_path / f"worker{rank}_step_12.1694128201545.pt.trace.json", made)
    assert [r.rank for r in traces.read([tmp_path])] == [0, 3]


def damaged(folder: Path) -> dict[str, tuple[list[Path], str]]:
    whole = gzip.compress(json.dumps(synthetic.trace(0)).encode())
    (folder / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "cut.json").write_text(json.dumps(synthetic.trace(0))[:5000])
    (folder / "empty.json").write_text("")
    write(folder / "other.json", {"a": 1})
    cpu = synthetic.trace(0)
    cpu["traceEvents"] = [e for e in cpu["traceEvents"] if e["cat"] == "cpu_op"]
    write(folder / "cpu.json", cpu)
    write(folder / "a.json", synthetic.trace(0))
    write(folder / "b.json", synthetic.trace(0))
    write(folder / "c.json", synthetic.trace(1, world=8))
    return {
        "cut.json.gz": ([folder / "cut.json.gz"], "cut off"),
        "cut.json": ([folder / "cut.json"], "ends early"),
        "empty": ([folder / "empty.json"], "an empty file"),
        "other": ([folder / "other.json"], "one of"),
        "no GPU": ([folder / "cpu.json"], "no GPU work"),
        "twice": ([folder / "a.json", folder / "b.json"], "another rank"),
        "worlds": ([folder / "a.json", folder / "c.json"], "world size"),
        "missing": ([folder / "none.json"], "no such file"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "cut.json.gz",
        "cut.json",
        "empty",
        "other",
        "no GPU",
        "twice",
        "worlds",
        "missing",
    ],
)
def test_wrong_files_are_explained(tmp_path: Path, case: str) -> None:
    """Every kind of damage is an error that names the file and what is wrong."""
    paths, expected = damaged(tmp_path)[case]
    with pytest.raises(InputError, match=expected):
        traces.read(paths)


def test_ranks_of_different_runs_are_refused(tmp_path: Path) -> None:
    """Ranks whose collectives cannot have met are not one run."""
    from prestep.sim.replay.replay import replay_files

    write(tmp_path / "a.json", synthetic.trace(0))
    other = synthetic.trace(1, late=3000.0)
    for event in other["traceEvents"]:
        event["ts"] *= 1.7
    write(tmp_path / "b.json", other)
    with pytest.raises(InputError, match="one run"):
        replay_files([tmp_path])


def test_steps_without_a_counterpart_are_refused_or_left_out(tmp_path: Path) -> None:
    """Steps that only some ranks recorded are left out and counted; with none in common there is nothing to say."""
    from prestep.sim.replay.replay import replay_files

    write(tmp_path / "a.json", synthetic.trace(0, steps=2))
    write(tmp_path / "b.json", synthetic.trace(1, steps=1))
    outcome = replay_files([tmp_path])
    assert {step.step for step in outcome.steps} == {"ProfilerStep#1"}
    assert (
        outcome.notes["steps that not all ranks recorded, left out of the comparison"]
        == 1
    )
