"""Changes one constant by 10 % and sees whether a comparison notices: a test of the gate, not of the constants.

    python -m lab.bench.mutations [--list] [--sample N] [--sets SET,SET] [NAME...]

The package is copied to a temporary folder, one number of one file is changed there, and a sample of measured rows and
the questions of `probes` are predicted by both. `listed`: some prediction moved by more than 0.5 %; `fails`: the
comparison exits 1; `differs`: some prediction is not the same number any more, which `prestep validate --compare BASE
--exact` refuses. `--sample N` takes N of all constants of the package's tables, by a checksum of their places.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import CASES
from lab.fit.constants import NUMBER, Constant, every_constant, sampled
from lab.report import revisions
from prestep.sim.errors import InputError, PrestepError, unknown
from prestep.validation.report.against import MOVED, Comparison, against

FACTOR = 1.1
HARDWARE, CLUSTER = "sim/costs/hardware", "topologies/clusters/h200-host-4.toml"

CONSTANTS = {
    "kernel times: products": Constant(f"{HARDWARE}/h200-aten.csv", r"^mm,"),
    "kernel times: elementwise": Constant(
        f"{HARDWARE}/h200-kernels.csv", r"^(add|mul|copy|cat|silu|neg)\w*,"
    ),
    "kernel times: attention": Constant(f"{HARDWARE}/h200-kernels.csv", r"^attention"),
    "gap between kernels": Constant(f"{HARDWARE}/h200.toml", r"^gap ="),
    "clock of crowded GPUs": Constant(f"{HARDWARE}/h200.toml", r"^crowded ="),
    "spread between GPUs": Constant(f"{HARDWARE}/h200.toml", r"^spread ="),
    "HBM bandwidth": Constant(f"{HARDWARE}/h200.toml", r"^bandwidth ="),
    "launch on the host": Constant(
        "workloads/frameworks/pytorch-eager.toml", r"^launch ="
    ),
    "linear on the host": Constant(
        "workloads/frameworks/pytorch-eager.toml", r"^linear ="
    ),
    "launch latency": Constant("sim/planning/planned.py", r"^LAUNCH_LATENCY ="),
    "host factor": Constant(CLUSTER, r"^host_factor ="),
    "NVLink bandwidth": Constant(CLUSTER, r"^bandwidth =", r"^\[nvlink\]"),
    "NVLink latency": Constant(CLUSTER, r"^latency =", r"^\[nvlink\]"),
    "disk bandwidth": Constant(CLUSTER, r"^bandwidth =", r"^\[nvme\]"),
    "NCCL ring Simple rate": Constant(
        f"{HARDWARE}/h200-nccl.toml", r"^rate =", r"^\[ring.Simple\]"
    ),
    "NCCL ring LL hop": Constant(
        f"{HARDWARE}/h200-nccl.toml", r"^hop =", r"^\[ring.LL\]"
    ),
    "NCCL ring LL start": Constant(
        f"{HARDWARE}/h200-nccl.toml", r"^start =", r"^\[ring.LL\]"
    ),
    "interference: collectives": Constant(
        "sim/costs/interference.toml", r"^communication ="
    ),
    "interference: other kernels": Constant(
        "sim/costs/interference.toml", r"^default ="
    ),
    "interference: power": Constant("sim/costs/interference.toml", r"^free ="),
    "power budget": Constant(f"{HARDWARE}/h200.toml", r"^budget ="),
    "power of products": Constant(f"{HARDWARE}/h200.toml", r"^product ="),
    "Megatron's products on the host": Constant(
        "workloads/frameworks/megatron.toml", r"^linear ="
    ),
    "Megatron's experts on the host": Constant(
        "workloads/frameworks/megatron.toml", r"^moe_counts ="
    ),
    "published products of B200": Constant(
        f"{HARDWARE}/b200-published.toml", r"^bf16 = \{", which=2
    ),
    "published products under load": Constant(
        f"{HARDWARE}/b200-published.toml", r"^bf16 =", r"^\[sustained\]"
    ),
    "published attention of A100": Constant(
        f"{HARDWARE}/a100-published.csv", r"^attention"
    ),
    "peak of H100": Constant(f"{HARDWARE}/h100.toml", r"^bf16 =", r"^\[peak\]"),
    "InfiniBand of a rail": Constant(
        "topologies/clusters/rail-h100.toml", r"^bandwidth =", r"^\[nic\]"
    ),
    "object store": Constant("sim/costs/storage/object.toml", r"^latency ="),
}
# Set -> (file of rows, every how many of them is predicted), or None for all of it.
SAMPLE: dict[str, tuple[str, int] | None] = {
    "h200": ("train_4gpu.jsonl", 4),
    "collectives": ("collectives_4gpu.jsonl", 12),
    "checkpoint": None,
    "probes": None,
}


def change(folder: Path, constant: Constant, factor: float = FACTOR) -> int:
    """Multiplies the constant in a copy of the package; how many lines (of a table: all of a kind) were changed.

    Raises
    ------
    PrestepError
        If the line is not there any more.
    """
    path = folder / constant.file
    lines, changed, ready = (
        path.read_text(encoding="utf-8").splitlines(keepends=True),
        0,
        not constant.after,
    )
    table = path.suffix == ".csv"
    head = lines[0].strip().split(",") if table else []
    column = next((head.index(name) for name in ("seconds", "us") if name in head), 0)
    for at, text in enumerate(lines):
        if not ready:
            ready = bool(re.search(constant.after, text))
        elif re.search(constant.line, text):
            lines[at] = (
                _row(text, factor, column)
                if table
                else _line(text, factor, constant.which)
            )
            changed += 1
            if not table:
                break
    if not changed:
        raise PrestepError(
            f"{constant.file}: no line {constant.line} {constant.after}: the constant has moved"
        )
    path.write_text("".join(lines), encoding="utf-8")
    return changed


def _line(text: str, factor: float, which: int = 0) -> str:
    name, _, value = text.partition("=")
    match = list(NUMBER.finditer(value))[which]
    number = repr(float(match[0].replace("_", "")) * factor)
    return f"{name}={value[: match.start()]}{number}{value[match.end() :]}"


def _row(text: str, factor: float, column: int) -> str:
    cells = text.split(",")
    cells[column] = repr(float(cells[column]) * factor)
    return ",".join(cells)


def copied(folder: Path) -> None:
    """The package without recorded traces."""
    for name in ("prestep", "sim", "topologies", "workloads", "validation", "lab"):
        shutil.copytree(
            revisions.HOME / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.pt.trace*"),
        )
    shutil.copy(revisions.HOME / "cli.py", folder)


def predictions(
    folder: Path, sets: Sequence[str] = tuple(SAMPLE), about: str = ""
) -> list[Mapping[str, Any]]:
    """Reports of the sample of the sets as the package in the folder predicts them.

    `about`: of `probes` only the questions about this (a key of `lab.sets.questions.ASK`).
    """
    reports: list[Mapping[str, Any]] = []
    for name in sets:
        if about and name == "probes":
            reports += _answers(folder, about)
            continue
        rows = None
        if (sample := SAMPLE[name]) is not None:
            rows = folder / f"sample-{sample[0]}"
            file, count = sample
            rows.write_text(_sampled(CASES / "h200" / file, count), "utf-8")
        reports += revisions.ask(str(folder), [name], rows, 1) or []
    return reports


def _answers(folder: Path, about: str) -> list[Mapping[str, Any]]:
    """The report of the questions about something; none where the package in the folder refuses to answer."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    asked = [sys.executable, "-m", "lab.sets.probes", about]
    done = subprocess.run(asked, cwd=folder, env=env, capture_output=True, check=False)
    return [json.loads(done.stdout)] if done.returncode == 0 else []


def _asked_in_both(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Reports of the base without the cases that nobody asked the changed package for."""
    asked = {
        (report["set"], case["id"]) for report in after for case in report["cases"]
    }
    return [
        {
            **report,
            "cases": [
                case for case in report["cases"] if (report["set"], case["id"]) in asked
            ],
        }
        for report in before
    ]


def _sampled(path: Path, step: int) -> str:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    settings = [bool(json.loads(line).get("kind") == "env") for line in lines]
    return "".join(
        line for at, line in enumerate(lines) if settings[at] or at % step == 0
    )


def _check(
    names: Sequence[str], constants: Mapping[str, Constant], sets: Sequence[str]
) -> None:
    """Refuses names of no constant, and of no set."""
    wrong = [
        unknown("mutations", "", name, CONSTANTS)
        for name in names
        if name not in constants
    ]
    wrong += [
        unknown("mutations", "--sets", name, SAMPLE)
        for name in sets
        if name not in SAMPLE
    ]
    if wrong:
        raise InputError(wrong)


def mutated(
    names: Sequence[str],
    sets: Sequence[str] = tuple(SAMPLE),
    now: Sequence[Mapping[str, Any]] | None = None,
    about: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Comparison | None]]:
    """The comparison of every named constant's change with what is predicted now, as it is found.

    None where the changed package refuses to predict anything. `now`: reports of the sample or of the whole sets, where
    there are some; what the sample has not is left out of them. `about`: constant -> the questions of `probes` that are
    asked, where those about one thing are enough.

    Raises
    ------
    InputError
        For a name that is neither in `CONSTANTS` nor among those of `every_constant`.
    """
    constants = {**CONSTANTS, **dict(every_constant())}
    _check(names, constants, sets)
    with tempfile.TemporaryDirectory(prefix="prestep-mutation-") as text:
        folder = Path(text)
        copied(folder)
        before = predictions(folder, sets) if now is None else now
        for name in names:
            constant = constants[name]
            original = (folder / constant.file).read_bytes()
            change(folder, constant)
            after = predictions(folder, sets, (about or {}).get(name, ""))
            base = before if now is None else _asked_in_both(before, after)
            yield name, against(base, after, name) if after else None
            (folder / constant.file).write_bytes(original)


def main() -> int:
    """Prints a line for every constant; 1 if one changed nothing that is listed."""
    options = _options()
    everything = sampled(options.sample) if options.sample else list(CONSTANTS)
    names = options.names or everything
    if options.list:
        print("\n".join(names))
        return 0
    head = f"{'cases':>6}{'listed':>8}{'fails':>7}{'differs':>9}"
    print(f"{'constant, 10 % more':78}{head}")
    unseen = 0
    for name, comparison in mutated(names, options.sets.split(",")):
        counts, seen = _counts(comparison)
        print(f"{name:78}{counts}", flush=True)
        unseen += not seen
    print(f"{len(names) - unseen} of {len(names)} listed, or refused")
    return 1 if unseen else 0


def _counts(comparison: Comparison | None) -> tuple[str, bool]:
    """What a changed constant changed, and whether anybody would see it; None: it was refused."""
    if comparison is None:
        return f"{'refused':>30}", True
    listed = sum(not abs(pair.moved) <= MOVED for pair in comparison.pairs)
    fails = sum(not check.passed for check in comparison.checks)
    cases, differs = len(comparison.pairs), comparison.differing
    return f"{cases:6}{listed:8}{fails:7}{differs:9}", bool(listed or fails)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.mutations")
    listed = "names of constants, with --sample those of the sample"
    sample = "N of all constants of the tables"
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help=listed)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help=sample)
    parser.add_argument("--sets", default=",".join(SAMPLE), help="what is compared")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
