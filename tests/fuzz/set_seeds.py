"""Good files that later commands read: rows of further sets, submissions, logs for the doctor, sweeps."""

from __future__ import annotations

import json
from pathlib import Path

from prestep.validation.sets.sets import folder_of
from tests.fuzz.job_seeds import Parts
from tests.validation.test_choices import LOG
from tests.validation.test_nccl_tests import HEAD, TAIL, row

ROOT = Path(__file__).parents[2]
#: Set -> its file of rows in its folder or beside it, and words that its cheapest rows have.
ROWS = {
    "energy": ("train_h100_power.jsonl", ""),
    "h100": ("train_1gpu.jsonl", ""),
    "leafspine": ("../h200/leafspine_degraded_4gpu.jsonl", ""),
    "h200-whatif": ("../h200/whatif_channels_4gpu.jsonl", ""),
    "collectives-leafspine": ("../h200/collectives_leafspine.jsonl", ""),
    "automodel": ("rows.csv", "Qwen2.5 7B"),
    "low-precision": ("rows.csv", "B200"),
    "rl": ("rows.csv", "LLAMA3.1_8B"),
    "schedules": ("primus.csv", "llama2 7B"),
    "lora": ("rows.csv", "config_DGXH200_1x8x2xtp1pp1cp2.sh"),
    "wall": ("liquid.jsonl", ""),
}
KERNELS = """system,framework,version,kernel_source,gemm_dtype,m,n,k,latency
h200_sxm,vLLM,0.14.0,cublas,bfloat16,64,4096,4096,0.02
h200_sxm,vLLM,0.14.0,cublas,fp8,8192,4096,4096,0.2
"""
#: Where rows were measured that do not say it.
WHERE = {"energy": ("--cluster", "dgx-h100")}


def _rows(name: str, most: int = 2) -> str:
    """The header of a table, where it has one, and a few of its rows."""
    file, word = ROWS[name]
    lines = (folder_of(name) / file).read_text(encoding="utf-8").splitlines()
    head, rest = ([], lines) if file.endswith(".jsonl") else (lines[:1], lines[1:])
    kept = [line for line in rest if word in line][:most] or rest[:most]
    return "".join(f"{line}\n" for line in head + kept)


def _report() -> str:
    """What nccl-tests prints with -J."""
    devices = [
        {"rank": r, "hostname": "nodeA", "device_info": "NVIDIA H100 80GB HBM3"}
        for r in range(8)
    ]
    sides = [{"time": 20.0 + 2**n / 5e4, "nwrong": 0.0} for n in range(10, 28)]
    return json.dumps(
        {
            "version": 2,
            "args": ["./build/all_gather_perf", "-g", "8"],
            "nccl_version": 22809,
            "env": ["HOME=/root", "NCCL_MAX_NCHANNELS=4"],
            "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
            "results": [
                {
                    "size": 1 << n,
                    "type": "float",
                    "out_of_place": side,
                    "in_place": side,
                }
                for n, side in enumerate(sides, 10)
            ],
        },
        indent=0,
    )


def sets() -> list[Parts]:
    """All of them."""
    made: list[Parts] = [
        (
            f"rows_{name}",
            Path(file).suffix,
            _rows(name),
            ("validate", name, "--jobs", "1", "--rows", "FILE", *WHERE.get(name, ())),
            {},
        )
        for name, (file, _) in ROWS.items()
    ]
    log = HEAD.replace("{program}", "all_reduce_perf") + "".join(
        row(1 << n, 20.0 + 2**n / 5e4, 20.0 + 2**n / 5e4) for n in range(10, 28)
    )
    doctor = ("doctor", "nccl", "FILE", "--cluster", "rail-h100", "--json")
    return [
        *made,
        (
            "rows_kernels",
            ".csv",
            KERNELS,
            ("validate", "kernels", "--rows", "FILE"),
            {},
        ),
        (
            "submission",
            ".jsonl",
            (ROOT / "examples/measured/submission.jsonl").read_text(encoding="utf-8"),
            ("submit", "FILE", "-o", "OUT", "--json"),
            {},
        ),
        ("doctor_tests", ".log", log + TAIL, doctor, {}),
        ("doctor_json", ".json", _report(), doctor, {}),
        (
            "calibrate_json",
            ".json",
            _report(),
            ("calibrate", "FILE", "-o", "OUT", "--cluster", "dgx-h100", "--force"),
            {},
        ),
        ("doctor_debug", ".log", LOG, doctor, {}),
    ]
