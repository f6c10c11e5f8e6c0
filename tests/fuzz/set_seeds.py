"""Good files that later commands read: rows of further sets, submissions, logs for the doctor, sweeps."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.job_seeds import Parts
from tests.validation.test_choices import LOG
from tests.validation.test_nccl_tests import HEAD, TAIL, row

ROOT = Path(__file__).parents[2]
CASES = ROOT / "validation/cases"
#: Set -> its file of rows, and words that its cheapest rows have.
ROWS = {
    "automodel": ("rows.csv", "Qwen2.5 7B"),
    "low-precision": ("rows.csv", "B200"),
    "rl": ("rows.csv", "LLAMA3.1_8B"),
    "schedules": ("primus.csv", "llama2 7B"),
    "lora": ("rows.csv", "config_DGXH200_1x8x2xtp1pp1cp2.sh"),
    "wall": ("liquid.jsonl", ""),
}


def _rows(name: str, most: int = 2) -> str:
    """The header of a table, where it has one, and a few of its rows."""
    file, word = ROWS[name]
    lines = (CASES / name / file).read_text(encoding="utf-8").splitlines()
    head, rest = ([], lines) if file.endswith(".jsonl") else (lines[:1], lines[1:])
    kept = [line for line in rest if word in line][:most] or rest[:most]
    return "".join(f"{line}\n" for line in head + kept)


def sets() -> list[Parts]:
    """All of them."""
    made: list[Parts] = [
        (
            f"rows_{name}",
            Path(file).suffix,
            _rows(name),
            ("validate", name, "--jobs", "1", "--rows", "FILE"),
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
            "submission",
            ".jsonl",
            (ROOT / "examples/measured/submission.jsonl").read_text(encoding="utf-8"),
            ("submit", "FILE", "-o", "OUT", "--json"),
            {},
        ),
        ("doctor_tests", ".log", log + TAIL, doctor, {}),
        ("doctor_debug", ".log", LOG, doctor, {}),
    ]
