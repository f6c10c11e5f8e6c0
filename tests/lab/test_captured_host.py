"""Fits the host's time for recorded programs to traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lab.fit.captured_host import fit, read
from prestep.workloads.capture import recording

TENSOR = {"dtype": "bf16", "shape": [64, 64]}
OPERATIONS = [
    ["aten.mm.default", [TENSOR, TENSOR], {}, [TENSOR]],
    ["aten.t.default", [TENSOR], {}, [TENSOR]],
]


def recorded(folder: Path, calls: int) -> Path:
    path = folder / "a.capture"
    table = {
        "format": recording.FORMAT,
        "version": recording.VERSION,
        "world": 1,
        "operations": OPERATIONS,
        "ranks": [
            {
                "rank": 0,
                "represents": [0],
                "events": [["operate", 0, 0, 0, calls]],
                "alive": {},
            }
        ],
        "groups": {},
        "parameters": 1,
        "step": 3,
        "gpu": "h200",
        "assumed": {},
        "compiled": [],
        "command": ["t.py"],
        "versions": {"torch": "2.13.0"},
    }
    recording.write(path, table)
    return path


def event(tid: int, name: str, start: float, length: float, cat: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "tid": tid,
        "name": name,
        "ts": start,
        "dur": length,
        "cat": cat,
    }


def traced(folder: Path, gap: float, wait: float = 0.0) -> Path:
    """Ten products of 20 us and a launch of 5 in autograd's thread, and in the program's, there with ``gap`` more."""
    events = []
    for tid, pause in ((1, gap), (2, 0.0)):
        for number in range(11):
            start = number * (25.0 + pause + wait)
            events += [
                event(tid, "aten::matmul", start, 24 + wait, "cpu_op"),
                event(tid, "aten::mm", start, 23 + wait, "cpu_op"),
                event(tid, "cudaLaunchKernel", start + 1, 5, "cuda_runtime"),
                event(tid, "cudaStreamSynchronize", start + 7, wait, "cuda_runtime"),
            ]
    events.append(event(2, "autograd::engine::evaluate_function", -5, 1, "cpu_op"))
    path = folder / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_what_the_program_s_thread_takes_beyond_autograd_s_is_python(
    tmp_path: Path,
) -> None:
    """Ten operations with 8 us more each, and 40 calls: 2 us a call."""
    costs = fit([read(recorded(tmp_path, 40), traced(tmp_path, gap=8.0))])
    assert costs == pytest.approx(
        {"aten_product": 20.0, "launch": 5.0, "python_call": 2.0}
    )


def test_waiting_is_no_work(tmp_path: Path) -> None:
    """A synchronisation in an operation does not count."""
    waiting = fit([read(recorded(tmp_path, 40), traced(tmp_path, 8.0, wait=100.0))])
    assert waiting["aten_product"] == pytest.approx(20.0)
