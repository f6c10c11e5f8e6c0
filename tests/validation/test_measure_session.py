"""Processes of a measurement: their time, their deaths, and how they share work."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from prestep.validation.measure import launch
from prestep.validation.measure.session import Session
from tests.validation.machines import place


def test_a_group_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes get the time they were given; when one dies, the others are ended soon."""
    (tmp_path / "sleeper.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == sys.argv[1][-6]: sys.exit(3)\ntime.sleep(900)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launch, "AFTER_A_DEATH", 0.1)
    monkeypatch.setattr(launch, "WORKER", "sleeper")
    for spec, codes in (
        (tmp_path / "s9.json", {0: None, 1: None}),
        (tmp_path / "s1.json", {0: None, 1: 3}),
    ):
        until = time.time() + (0.5 if "9" in spec.name else 300)
        ended = launch.run_group(spec, place(2), 2, {}, tmp_path, until, 1)
        assert dict(ended.codes) == codes and not ended.good
        assert time.time() < until + 300  # sooner than the sleepers end


def test_a_case_that_ended_a_process_is_not_tried_again(tmp_path: Path) -> None:
    """Items are marked before they begin; what was tried in an earlier group is passed over, the others are not."""
    spec = {
        "folder": str(tmp_path),
        "until": time.time() + 60,
        "tiny": True,
        "stage": "0 x",
        "tried": ["training:b"],
    }
    session = Session(spec, {})
    with session.probing("training", time.time() + 60):
        assert list(session.items(["a", "b", "c"], str)) == ["a", "c"]
    marks = [
        json.loads(line)
        for line in (session.folder / "progress").read_text().splitlines()
    ]
    assert ["0 x", "begin", "training:a"] in marks and [
        "0 x",
        "end",
        "training:c",
    ] in marks


def test_items_stop_when_the_time_is_over(tmp_path: Path) -> None:
    """What there was no time for is counted in a row."""
    session = Session(
        {"folder": str(tmp_path), "until": time.time() - 1, "tiny": True}, {}
    )
    assert list(session.items(["a", "b"], str)) == []
    (row,) = (
        json.loads(line)
        for line in (session.folder / "skipped.jsonl").read_text().splitlines()
    )
    assert row["why"] == "no time left" and "2 of 2" in row["what"]


def test_single_gpu_work_is_shared_without_gaps(tmp_path: Path) -> None:
    """The first host's GPUs take turns; every item is somebody's, and other hosts have none."""

    def share(rank: int) -> list[int]:
        env = {"RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
        return list(
            Session({"folder": str(tmp_path), "until": 0.0, "tiny": True}, env).share(
                range(10)
            )
        )

    assert sorted(item for rank in range(4) for item in share(rank)) == list(range(10))
    assert share(5) == []
