"""A step with its data, as a user types it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from tests.sample import together

RUN = ["run", "resnet50-ddp4", "--json"]


def run(*changes: str, code: int = 0) -> Any:
    parts = [part for change in changes for part in ("--set", f"dataload.{change}")]
    result = CliRunner().invoke(main, [*RUN, *parts])
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return json.loads(result.output) if code == 0 else result.output


@cache
def without() -> Any:
    """The step without [dataload]."""
    return run()


def test_an_input_bound_step_shows_it_in_the_breakdown() -> None:
    """Step time, rates and the share `io` are those with the waiting; the shares still add up to the step."""
    made = run("decode=10 ms", "workers=8")
    assert (
        made["dataload"]["input_bound"]
        and made["dataload"]["step_time_without"] == without()["step_time"]
    )
    assert (
        made["step_time"] == pytest.approx(128 * 0.010 / 8)
        and made["mfu"] < without()["mfu"]
    )
    assert made["breakdown"]["io"] == pytest.approx(
        made["step_time"] - without()["step_time"]
    )
    assert sum(made["breakdown"].values()) == pytest.approx(made["step_time"])
    assert set(made["step_time_by_rank"].values()) == {made["step_time"]}


def test_enough_readers_leave_the_step_alone() -> None:
    """Where data waits for the GPU, everything is as without [dataload]."""
    made = run("decode=1 ms", "workers=64")
    assert (
        made["dataload"]["exposed"] == 0 and made["step_time"] == without()["step_time"]
    )
    assert made["breakdown"] == without()["breakdown"]


@pytest.mark.parametrize(
    "change", ["workers=4", "cpus=64", "sample=50 KB", "decode=4 ms"]
)
def test_more_of_everything_helps(change: str) -> None:
    """More workers, more cores, smaller samples and faster decoding never make a step slower."""
    slow = ("workers=2", "cpus=4", "sample=800 KB", "decode=8 ms", "storage=ebs")
    better = (
        *(one for one in slow if one.partition("=")[0] != change.partition("=")[0]),
        change,
    )
    assert run(*better)["step_time"] <= run(*slow)["step_time"]


def test_cores_that_workers_share_make_them_slower() -> None:
    """Eight workers of each of four ranks on sixteen cores decode at half the speed."""
    enough, half = (
        run("decode=10 ms", "workers=8", "cpus=32"),
        run("decode=10 ms", "workers=8", "cpus=16"),
    )
    assert half["dataload"]["batch_time"] == pytest.approx(
        2 * enough["dataload"]["batch_time"]
    )


def test_the_storage_can_be_the_limit() -> None:
    """730 requests a second of an EBS volume feed four ranks no faster, however many workers ask."""
    made = run("decode=1 us", "workers=64", "sample=100 KB", "storage=ebs")["dataload"]
    assert made["bound_by"] == "storage" and made["read_time"] == pytest.approx(
        4 * 128 / 730, rel=0.01
    )


def test_copies_to_the_gpu() -> None:
    """Copies add to the step on its stream, pinned less than pageable; beside it they cost nothing."""
    times = {
        how: run("decode=1 us", "workers=8", f"copy={how}")
        for how in ("pageable", "pinned", "beside")
    }
    steps = [times[how]["step_time"] for how in ("beside", "pinned", "pageable")]
    assert steps == sorted(steps) and steps[0] == without()["step_time"]
    image = 128 * (224 * 224 * 3 * 4 + 8)
    assert times["pinned"]["dataload"]["copy_time"] == pytest.approx(
        image / 53e9, rel=0.3
    )
    assert steps[1] - steps[0] == pytest.approx(
        times["pinned"]["dataload"]["copy_time"]
    )


def test_without_workers_reading_adds_up_but_for_the_lead() -> None:
    """The training process reads itself: all of it is exposed, or with a pageable copy all but what was launched ahead."""
    plain, level = run("decode=1 ms"), run("decode=1 ms", "copy=pageable")
    assert plain["step_time"] == pytest.approx(without()["step_time"] + 0.128)
    wait = level["dataload"]["exposed"] - level["dataload"]["copy_time"]
    assert 0 < wait <= 0.128 + 1e-9 and not level["dataload"]["input_bound"]


@together(
    ("changes", "told"),
    [
        (("workers=4",), "dataload.batch_time"),
        (("batch_time=20 ms", "decode=1 ms"), "one of them"),
        (("decode=1 ms", "storage=weka"), "bytes of one sample"),
        (("decode=1 ms", "sample=1 MB", "storage=wekka"), "did you mean"),
        (("decode=1 ms", "copy=zero"), "one of pageable"),
        (("decode=-1 ms",), "dataload.decode"),
        (("decode=1 ms", "sample=0 B"), "more than 0"),
        (("decode=1 ms", "workers=-1"), "at least 0"),
    ],
)
def test_mistakes(changes: tuple[str, ...], told: str) -> None:
    """Readers of which too little is said, or nonsense, are refused with the key."""
    assert told in run(*changes, code=2)
