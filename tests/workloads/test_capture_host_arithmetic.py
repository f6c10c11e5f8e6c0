"""What a recorded program computes on tensors in its host's memory: offloaded optimizers, collated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.host_work import THREAD

MATRIX = {"dtype": "bf16", "shape": [64, 64]}
UPDATE = "aten::addcdiv_"


def written(folder: Path, moved: int, threads: int) -> Path:
    """A recording of a product and an update on the host that moves so many bytes."""
    events: list[list[Any]] = [
        ["host_computes", UPDATE, moved, 0],
        ["operate", 0, 0, 0, 0],
    ]
    tables = {
        "format": recording.FORMAT,
        "version": recording.VERSION,
        "world": 1,
        "operations": [["aten.mm.default", [MATRIX, MATRIX], {}, [MATRIX]]],
        "ranks": [{"rank": 0, "represents": [0], "events": events, "alive": {}}],
        "groups": {},
        "parameters": 64,
        "step": 3,
        "gpu": "h200",
        "assumed": {},
        "compiled": [],
        "command": ["train.py"],
        "versions": {"torch": "2.11.0"},
        "threads": threads,
    }
    path = folder / f"{moved}-{threads}.capture"
    recording.write(path, tables)
    return path


def predicted(path: Path, *overrides: str) -> Prediction:
    return predict(load_scenario(path, ["cluster.name=h200-host-4", *overrides]))


@pytest.mark.parametrize("threads", [1, 4])
def test_what_the_host_computes_takes_its_bytes_over_its_threads(
    tmp_path: Path, threads: int
) -> None:
    """One thread moves what a core can, several as many times that, and the GPU waits for it."""
    size = 1 << 32
    slow = predicted(written(tmp_path, 2 * size, threads)).step_time
    quick = predicted(written(tmp_path, size, threads)).step_time
    assert slow - quick == pytest.approx(size / (threads * THREAD), rel=1e-6)


def test_all_cores_are_as_quick_as_the_host_s_memory(tmp_path: Path) -> None:
    """Twice the memory's bandwidth halves the time; threads beyond it change nothing."""
    path, many = written(tmp_path, 1 << 36, 0), written(tmp_path, 1 << 36, 1000)
    base = predicted(path).step_time
    assert predicted(many).step_time == base
    doubled = predicted(path, "cluster.set.memory.bandwidth=2x").step_time
    assert doubled == pytest.approx(base / 2, rel=1e-3)


def test_the_report_says_that_the_host_computes(tmp_path: Path) -> None:
    """With its bytes, and that its time is a guess; `capture show` lists the operations."""
    path = written(tmp_path, 1 << 30, 1)
    told = [line for line in predicted(path).warnings if "host itself computes" in line]
    assert len(told) == 1
    assert "1 GiB" in told[0]
    assert "guess" in told[0]
    shown = CliRunner().invoke(cli.main, ["capture", "show", str(path)]).stdout
    assert "The host computes" in shown
    assert "addcdiv_" in shown


def test_a_program_that_leaves_its_host_alone_has_no_such_line(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1)
    assert not any("host itself" in line for line in predicted(path).warnings)
