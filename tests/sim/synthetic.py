"""A small made-up timeline whose every number can be checked by hand; times in whole microseconds."""

from __future__ import annotations

from typing import Any

from prestep.sim.analysis.link_use import Link
from prestep.sim.analysis.memory import Memory
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import Timeline

US = 1e-6
#             stream     kind          name              phase       axis group step  launch start ready end  bytes
ONE_STEP = [
    ("compute", "kernel", "gemm_fprop", "forward", "", "", 0, 10, 12, 12, 112, 0.0),
    (
        "tp",
        "collective",
        "all_reduce",
        "forward",
        "tp",
        "0-1",
        0,
        20,
        112,
        120,
        142,
        4096.0,
    ),
    ("compute", "kernel", "gemm_dgrad", "backward", "", "", 0, 30, 142, 142, 202, 0.0),
    (
        "dp",
        "collective",
        "all_reduce",
        "backward",
        "dp",
        "0-1",
        0,
        40,
        182,
        182,
        242,
        8192.0,
    ),
    ("pp", "recv", "recv", "backward", "pp", "0,1", 0, 50, 242, 262, 272, 2048.0),
    ("compute", "copy", "h2d", "forward", "", "", 0, 60, 272, 272, 282, 1024.0),
    ("compute", "kernel", "adamw", "optimizer", "", "", 0, 300, 305, 305, 345, 0.0),
]
#: What `breakdown` must say of one step, in microseconds.
EXPECTED = {
    "compute": 100 + 60 + 40,
    "exposed_tp": 22,
    "exposed_pp": 10,
    "exposed_dp": 40,
    "bubble": 20,
    "straggler": 8,
    "io": 10,
    "host": 23,
    "idle": 0,
}


def timeline(ranks: int = 1, steps: int = 1, period: float = 400.0) -> Timeline:
    """The step of ONE_STEP on every rank, repeated every `period` microseconds."""
    rows = [
        (rank, step, row)
        for rank in range(ranks)
        for step in range(steps)
        for row in ONE_STEP
    ]
    columns: dict[str, Any] = {
        "rank": [rank for rank, _, _ in rows],
        "step": [step for _, step, _ in rows],
    }
    for i, name in enumerate(("stream", "kind", "name", "phase", "axis", "group")):
        columns[name] = [row[i] for _, _, row in rows]
    for i, name in enumerate(("launch", "start", "ready", "end"), start=7):
        columns[name] = [(row[i] + step * period) * US for _, step, row in rows]
    columns["bytes"] = [row[11] for _, _, row in rows]
    return Timeline.build(op=range(len(rows)), channels=24, **columns)


def result(**changes: Any) -> Prediction:
    """A result around `timeline`."""
    values: dict[str, Any] = {
        "step_time": 333e-6,
        "step_time_by_rank": {0: 333e-6},
        "tokens_per_second_per_gpu": 97412.3,
        "mfu": 0.412,
        "tflops_per_gpu": 407.5,
        "breakdown": {name: time * US for name, time in EXPECTED.items()},
        "peak_memory": {
            0: Memory(parameters=2e9, gradients=2e9, optimizer=4e9, activations=9e9)
        },
        "memory_capacity": 140e9,
        "links": (Link("gpu0->nvswitch0", 0.62, 1.5e9, 0.004),),
        "evidence": {"measured": 0.8, "fitted": 0.15, "guess": 0.05},
        "scenario": {
            "model": "llama3-1b",
            "cluster": "h200-host-2",
            "gpus": 2,
            "precision": "bf16",
            "gpu": "NVIDIA H200",
        },
        "measured": 330e-6,
        "timeline": timeline(),
    }
    return Prediction(**{**values, **changes})
