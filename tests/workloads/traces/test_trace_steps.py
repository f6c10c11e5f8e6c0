"""Which step of one rank is which of another, and what marks a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prestep.cli import main
from tests.workloads.traces import synthetic


def save(folder: Path, rank: int, **names: str) -> dict[str, Any]:
    """Writes a rank's trace with its steps renamed; an empty name takes the mark away."""
    made = synthetic.trace(rank)
    kept = []
    for event in made["traceEvents"]:
        name = names.get(event["name"].replace("ProfilerStep#", "s"), event["name"])
        kept += [event | {"name": name}] if name else []
    made["traceEvents"] = kept
    (folder / f"rank{rank}.json").write_text(json.dumps(made))
    return made


def replay(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["replay", str(folder), *options])


@pytest.mark.parametrize(
    "names",
    [
        ("ProfilerStep#8", "ProfilerStep#9"),
        ("ProfilerStep#2", "ProfilerStep#3"),
        ("iter 1", "iter 2"),
    ],
)
def test_steps_named_otherwise_are_paired_by_time(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Steps of two ranks that were at the same time are the same, whatever they are called; that is counted."""
    save(tmp_path, 0)
    save(tmp_path, 1, s1=names[0], s2=names[1])
    result = replay(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["measured_step_time"]["1"]) == [
        "ProfilerStep#1",
        "ProfilerStep#2",
    ]
    assert found["worst_error"] < 1e-6
    assert (
        found["reports"][
            "steps of ranks that are named otherwise than rank 0's, paired by time"
        ]
        == 2
    )


def test_ranges_named_like_steps_are_steps(tmp_path: Path) -> None:
    """Where the profiler marked no step, annotations such as "train_step 3" do; that is said."""
    for rank in range(2):
        save(tmp_path, rank, s1="train_step 1", s2="train_step 2")
    result = replay(tmp_path)
    assert result.output.count("train_step 2") == 2
    assert "told by names of ranges" in result.output


def test_steps_that_fit_in_no_way_are_refused(tmp_path: Path) -> None:
    """A rank whose steps are neither named like those of the others nor at their time is an error that shows both."""
    save(tmp_path, 0)
    save(tmp_path, 1, s1="", s2="")
    result = replay(tmp_path)
    assert result.exit_code == 2
    assert (
        "rank 0: ProfilerStep#1, ProfilerStep#2; rank 1: none marked" in result.output
    )


def test_a_step_without_a_length_ends_where_the_next_begins(tmp_path: Path) -> None:
    """Negative durations of steps are repaired, and both repairs are counted."""
    made = save(tmp_path, 0)
    for event in made["traceEvents"]:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = -event["dur"]
    (tmp_path / "rank0.json").write_text(json.dumps(made))
    found = json.loads(replay(tmp_path, "--json").stdout)
    assert found["measured_step_time"]["0"]["ProfilerStep#1"] == pytest.approx(
        7.1e-3, rel=0.02
    )
    assert found["reports"]["negative duration taken as 0"] == 2
    assert found["reports"]["steps without a length, ended where the next begins"] == 2


def test_only_some_steps_are_reported(tmp_path: Path) -> None:
    """`--steps` takes numbers, ranges and names; answers are about the last of them."""
    synthetic.save(tmp_path, steps=3, world=2)
    whole = json.loads(replay(tmp_path, "--json").stdout)
    for wanted, expected in (
        ("2", [2]),
        ("1-2", [1, 2]),
        ("ProfilerStep#3", [3]),
        ("3,1", [1, 3]),
    ):
        found = json.loads(replay(tmp_path, "--json", "--steps", wanted).stdout)
        assert list(found["simulated_step_time"]["0"]) == [
            f"ProfilerStep#{n}" for n in expected
        ]
        assert (
            found["simulated_step_time"]["0"].items()
            <= whole["simulated_step_time"]["0"].items()
        )
        assert sum(found["breakdown"]["measured"].values()) == pytest.approx(
            sum(found["breakdown"]["simulated"].values())
        )
    wrong = replay(tmp_path, "--steps", "7,x")
    assert wrong.exit_code == 2
    assert wrong.output.count("no such step") == 2


def test_formats_of_one_folder_must_be_one(tmp_path: Path) -> None:
    """A Chakra trace beside a Kineto trace is an error that says what is what."""
    folder = tmp_path / "run"
    folder.mkdir()
    synthetic.save(folder, world=2)
    CliRunner().invoke(
        main, ["convert", str(folder), "-o", str(tmp_path / "et" / "x.et")]
    )
    (tmp_path / "et" / "x.1.et").rename(folder / "rank1.et")
    (folder / "rank1.pt.trace.json.gz").unlink()
    result = replay(folder)
    assert result.exit_code == 2
    assert "rank1.et is chakra" in result.output


def test_strangers_are_named_by_their_files(tmp_path: Path) -> None:
    """Ranks that never met are told with the files they are in."""
    save(tmp_path, 0)
    other = synthetic.trace(1)
    for event in other["traceEvents"]:
        if "Collective name" in event["args"]:
            event["args"]["Collective name"] = "_allgather_base"
            event["name"] = event["name"].replace("AllReduce", "AllGather")
    (tmp_path / "other-run-rank1.json").write_text(json.dumps(other))
    result = replay(tmp_path)
    assert result.exit_code == 2
    assert "other-run-rank1.json" in result.output
    assert "one run" in result.output
