"""Measured ATen operations (`lab/cases/aten`) and the reading of the profiler's traces they come from."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from lab import CASES
from lab.measure.trace import MARK, kernels_by_mark

Rows = list[dict[str, Any]]
GPUS = ("h100", "h200")


@cache
def operations(name: str) -> Rows:
    with gzip.open(CASES / "aten" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["kind"] == "op"]


def identity(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["family"],
        row["op"],
        row["way"],
        json.dumps(row["size"]),
        json.dumps(row["set"], sort_keys=True),
    )


def test_both_gpus_measured_the_same_cases() -> None:
    """Each case once a GPU, with the same split and the same operations below autograd."""
    first, second = ({identity(row): row for row in operations(gpu)} for gpu in GPUS)
    assert first.keys() == second.keys() and len(first) == len(operations("h100"))
    assert all(first[case]["split"] == second[case]["split"] for case in first)
    assert all(first[case]["aten"] == second[case]["aten"] for case in first)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_operation_of_several_sizes_has_some_to_fit_and_some_to_judge(
    gpu: str,
) -> None:
    """A size is held out with all its settings; no operation is judged by nothing, or fitted to nothing."""
    splits: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for row in operations(gpu):
        splits[row["family"], row["op"]][json.dumps(row["size"])].add(row["split"])
    for sizes in splits.values():
        assert all(len(split) == 1 for split in sizes.values())
        assert len(sizes) == 1 or set.union(*sizes.values()) == {"fit", "held_out"}


@pytest.mark.parametrize("name", [*GPUS, "h100.again"])
def test_times_are_whole(name: str) -> None:
    """No errors; every case has a host time, and its kernels' times add up to its own (medians: within a tenth)."""
    for row in operations(name):
        assert "error" not in row and row["host_s"] > 0 and row["s"] > 0 and row["aten"]
        if row["kernels"]:
            total = sum(kernel[3] for kernel in row["kernels"])
            assert math.isclose(total, row["cold_s"], rel_tol=0.1), identity(row)
            assert row["cold_min_s"] <= row["cold_s"]
            launches = sum((*kernel[5:], 1)[0] for kernel in row["kernels"])
            assert launches > 1 or row["cold_s"] == pytest.approx(
                row["span_s"], rel=0.01
            )


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_is_faster_than_the_gpu(gpu: str) -> None:
    """Dense peaks of the datasheet bound products, its memory's rate what reads and writes more than any L2 holds."""
    peaks = {"bf16": 989e12, "fp16": 989e12, "tf32": 495e12, "fp32": 67e12}
    for row in operations(gpu):
        if row["op"] == "mm":
            assert (
                2 * math.prod(row["size"]) / row["cold_min_s"]
                < peaks[row["set"]["dtype"]]
            ), identity(row)
        if row["op"] == "clone" and row["size"][0] >= 2**26:
            moved = (
                2
                * row["size"][0]
                * {"bf16": 2, "fp16": 2, "fp32": 4}[row["set"]["dtype"]]
            )
            assert moved / row["cold_min_s"] < {"h100": 3.35e12, "h200": 4.8e12}[gpu]


def _event(
    category: str, name: str, ts: float, dur: float, correlation: int | None = None
) -> dict[str, Any]:
    about = {} if correlation is None else {"correlation": correlation}
    if category == "kernel":
        about |= {"grid": [1, 1, 1], "block": [32, 1, 1]}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": about,
    }


def test_a_kernel_belongs_to_the_range_that_launched_it() -> None:
    """Whenever it ran, and in the order of the GPU; kernels launched outside every range belong to none."""
    events = [
        _event("user_annotation", f"{MARK}7 cold", 10, 5),
        _event("user_annotation", f"{MARK}7 cold", 20, 5),
        _event("cuda_runtime", "cudaLaunchKernel", 11, 1, 1),
        _event("cuda_driver", "cuLaunchKernelEx", 12, 1, 2),
        _event("cuda_runtime", "cudaLaunchKernel", 16, 1, 3),
        _event("cuda_runtime", "cudaMemcpyAsync", 21, 1, 4),
        _event("kernel", "second", 40, 3, 2),
        _event("kernel", "first", 30, 2, 1),
        _event("kernel", "stray", 44, 9, 3),
        _event("gpu_memcpy", "copy", 60, 4, 4),
    ]
    runs = kernels_by_mark({"traceEvents": events})["7 cold"]
    assert [[kernel.name for kernel in run] for run in runs] == [
        ["first", "second"],
        ["copy"],
    ]
    assert [kernel.s for kernel in runs[0]] == pytest.approx([2e-6, 3e-6]) and runs[0][
        0
    ].grid == (1, 1, 1)
