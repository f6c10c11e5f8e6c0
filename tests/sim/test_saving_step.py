"""The step that saves a checkpoint: its time, its breakdown and the spans of its save."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.analysis import metrics
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import SAVE, WRITER
from prestep.sim.api import load, simulate
from tests.sim.timeline_laws import check

MODES = ("rank0", "sharded", "async")
P5 = {"cluster.name": "aws-p5", "parallel.dp": 8, "training.global_batch": 16}


@cache
def plain() -> Prediction:
    """The step of a scenario that saves nothing."""
    return simulate(load("llama1b-ddp4"))


def saves(mode: str, **changes: object) -> Prediction:
    options = {f"checkpoint.{key}": value for key, value in changes.items()}
    return simulate(load("llama1b-ddp4", {"checkpoint.mode": mode, **options}))


@cache
def saved(mode: str) -> Prediction:
    return saves(mode, every=1000)


@pytest.mark.parametrize("mode", MODES)
def test_the_step_that_saves_is_the_plain_step_and_the_foreground(mode: str) -> None:
    """Its shares sum to it, and all that it has more is io; the step beside it is that without [checkpoint]."""
    result = saved(mode)
    saving = result.effects["checkpoint"]["saving_step"]
    assert result.step_time == saving["step_time_without"] == plain().step_time
    assert saving["step_time"] == pytest.approx(
        plain().step_time + result.effects["checkpoint"]["save_stall"]
    )
    assert sum(saving["breakdown"].values()) == pytest.approx(saving["step_time"])
    more = {
        name: seconds - plain().breakdown[name]
        for name, seconds in saving["breakdown"].items()
    }
    assert (
        more.pop("io") == pytest.approx(saving["foreground"])
        and saving["foreground"] > 0
    )
    assert set(more.values()) == {0.0}
    assert result.effects["checkpoint"]["io_per_step"] == pytest.approx(
        result.effects["checkpoint"]["later"]["save_stall"] / 1000
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_timeline_shows_the_save_on_every_rank(mode: str) -> None:
    """After the step every rank does nothing but io for the foreground; the writer's spans end with the background."""
    result = saved(mode)
    spans, table = result.timeline, result.effects["checkpoint"]
    assert spans is not None and table is not None
    check(spans)
    save = spans.select(spans.matches("phase", "checkpoint"))
    begin, stall = float(save["start"].min()), table["save_stall"]
    steps = spans.select(~spans.matches("stream", SAVE, WRITER))
    assert begin == steps["end"].max()
    for rank in steps.ranks:
        shares = metrics.breakdown(spans, rank, begin, begin + stall)
        assert shares["io"] == pytest.approx(stall)
        assert metrics.step_window(spans, rank, 1) == metrics.step_window(
            steps, rank, 1
        )
    background = save.select(save.matches("stream", WRITER))
    assert (len(background) > 0) == (mode == "async")
    assert save["end"].max() == pytest.approx(begin + stall + table["background"])


@pytest.mark.parametrize("mode", ["sharded", "async"])
def test_what_is_copied_is_what_is_saved(mode: str) -> None:
    """The copies of all ranks, those that a simulated one stands for too, have the bytes of the checkpoint."""
    result = saved(mode)
    assert result.timeline is not None and result.details is not None
    copies = result.timeline.select(result.timeline.matches("name", "checkpoint copy"))
    weights = [len(result.details.represents[rank]) for rank in copies["rank"].tolist()]
    assert weights @ copies["bytes"] == pytest.approx(
        result.effects["checkpoint"]["bytes"]
    )


def test_an_asynchronous_save_holds_a_step_up_for_less() -> None:
    """A save that training waits for wholly has no background; one behind training stalls it for no longer."""
    foreground = {
        mode: saved(mode).effects["checkpoint"]["saving_step"] for mode in MODES
    }
    assert foreground["sharded"]["background"] == 0
    assert foreground["async"]["step_time"] < foreground["sharded"]["step_time"]
    assert foreground["async"]["background"] > 0


def test_a_copy_into_pinned_memory_takes_what_pcie_takes() -> None:
    """The foreground is the bytes of one rank over the PCIe link of its GPU, nothing else."""
    result = saves("async", pinned=True)
    assert result.details is not None
    fabric, gpu = result.details.fabric, result.details.gpus[0]
    rows = fabric.route(gpu, fabric.nearest(gpu, "memory"))
    narrowest = float(fabric.links.bandwidth[rows].min())
    assert result.effects["checkpoint"]["saving_step"]["foreground"] == pytest.approx(
        result.effects["checkpoint"]["bytes"] / 4 / narrowest
    )


def test_disks_bound_saves_and_loads() -> None:
    """A host writes and reads a checkpoint no faster than its disks; faster disks shorten the step that saves."""
    times = []
    for rate in ("1x", "2x"):
        change = {**P5, "checkpoint.mode": "sharded", "nvme.bandwidth": rate}
        result = simulate(load("llama1b-ddp4", change))
        assert result.details is not None
        fabric = result.details.fabric
        disks = np.array(fabric.nodes.kinds) == "nvme"
        src, dst = fabric.ends
        written, read = (
            float(fabric.links.bandwidth[disks[ends]].sum()) for ends in (dst, src)
        )
        legs, size = (
            result.effects["checkpoint"]["legs"],
            result.effects["checkpoint"]["bytes"],
        )
        assert legs["sync"] - legs["serialise"] >= size / written
        assert result.effects["checkpoint"]["load_time"] >= size / read
        times.append(result.effects["checkpoint"]["saving_step"]["step_time"])
    assert times[1] < times[0]


def test_the_trace_shows_the_save_after_its_steps(tmp_path: Path) -> None:
    """Every rank has its save in the trace, after the last step; the steps are those of a trace without it, read back
    too."""
    steps, read = [], []
    for name, change in (("plain", ()), ("saves", ("--set", "checkpoint.mode=async"))):
        path = tmp_path / f"{name}.json"
        made = CliRunner().invoke(
            main, ["run", "llama1b-ddp4", *change, "--trace", str(path)]
        )
        assert made.exit_code == 0, made.output
        replayed = CliRunner().invoke(main, ["replay", str(path), "--json"])
        read.append(json.loads(replayed.output)["step_time"])
        events = json.loads(path.read_text())["traceEvents"]
        marks = [e for e in events if e["name"].startswith("ProfilerStep#")]
        steps.append(marks)
        save = [e for e in events if e.get("args", {}).get("phase") == "checkpoint"]
        assert bool(save) == bool(change)
    assert steps[0] == steps[1] and read[0] == read[1] > 0
    last = max(mark["ts"] + mark["dur"] for mark in steps[1])
    assert min(event["ts"] for event in save) >= last - 1
    assert {event["pid"] for event in save} == {mark["pid"] for mark in steps[1]}
