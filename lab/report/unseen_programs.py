"""`python -m lab.report.unseen_programs FOLDER`: programs that were measured before anybody predicted them.

The folder has the programs and `rows.jsonl`, a row for each: step, time of its kernels, peak of memory. Every program
is captured as it is, without a GPU, and predicted: what refuses, and how far the rest is off. `--captures` keeps the
recordings, so that another state of the tables is judged without capturing again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from prestep.sim.errors import PrestepError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture.recorder import captured

CLUSTERS = {"H200": "h200-host-4", "H100": "h100-host-2"}
#: Share of a measured step from which on its kernels bound it.
BUSY = 0.9


@dataclass(frozen=True)
class Judged:
    """A program beside its row: seconds of a step and of its kernels, bytes at the peak; why it refuses."""

    row: dict[str, Any]
    step: float = math.nan
    kernels: float = math.nan
    peak: float = math.nan
    reserved: float = math.nan
    error: str = ""
    operators: dict[str, float] = field(default_factory=dict)

    @property
    def bound_by_gpu(self) -> bool:
        busy = self.row["gpu_busy_s"] + self.row["comm_s"]
        return bool(busy >= BUSY * self.row["step_s"])

    def off(self, predicted: float, measured: str) -> float:
        return predicted / float(self.row[measured]) - 1.0


def judge(row: dict[str, Any], folder: Path, captures: Path) -> Judged:
    """Captures a program unless its recording is there, and predicts it."""
    recording = captures / f"{row['id']}.capture"
    cluster = next(c for name, c in CLUSTERS.items() if name in row["gpu"])
    command = (str(folder / row["script"]), *row["args"])
    try:
        if not recording.exists():
            world = row["world"]
            how = {"world": world, "cluster": cluster, "stop": True, "quiet": True}
            captured(command, recording, **how)
        planned = plan(load_scenario(recording, [f"cluster.name={cluster}"]))
        result = reported(planned, execute(planned))
    except PrestepError as error:
        return Judged(row, error=str(error).strip().splitlines()[-1])
    operators = by_operator(planned)
    return Judged(
        row,
        result.step_time,
        math.fsum(operators.values()),
        max(memory.total for memory in result.peak_memory.values()),
        max(result.reserved.values(), default=math.nan),
        operators=operators,
    )


def by_operator(planned: Planned) -> dict[str, float]:
    """Seconds for which the first rank's kernels run, by their kinds; pauses between those of an operation are none."""
    program, kernels = planned.graph.programs[0], planned.graph.kernels
    gpu = planned.machine.gpu
    own = program.payload[program.kind == KERNEL]
    pauses = np.array([isinstance(k, Kernel) and gpu.pauses(k) for k in kernels])
    seconds = (planned.durations - pauses)[own]
    sums: dict[str, float] = defaultdict(float)
    for number, total in enumerate(np.bincount(own, weights=seconds)):
        if total:
            sums[kernels[number].kind] += float(total)
    return sums


def lines(judged: Iterable[Judged]) -> Iterator[str]:
    """A line for each program, then means by who bounds the step."""
    every = list(judged)
    yield f"{'program':16}{'step ms':>10}{'off':>8}{'kernels':>10}{'off':>8}{'peak GiB':>10}{'off':>8}"
    for each in every:
        yield _line(each)
    there = [each for each in every if not each.error]
    yield f"refused: {len(every) - len(there)} of {len(every)}"
    gpu = [each for each in there if each.bound_by_gpu]
    host = [each for each in there if not each.bound_by_gpu]
    yield _mean("kernels", [e.off(e.kernels, "gpu_busy_s") for e in there])
    yield _mean("memory", [e.off(e.peak, "peak_allocated") for e in there])
    yield _mean("steps that the GPU bounds", [e.off(e.step, "step_s") for e in gpu])
    yield _mean("steps that the host bounds", [e.off(e.step, "step_s") for e in host])


def _line(each: Judged) -> str:
    row = each.row
    if each.error:
        return f"{row['id']:16}{row['step_s'] * 1e3:10.2f}  refused: {each.error}"
    return (
        f"{row['id']:16}{row['step_s'] * 1e3:10.2f}{each.off(each.step, 'step_s'):+8.1%}"
        f"{row['gpu_busy_s'] * 1e3:10.2f}{each.off(each.kernels, 'gpu_busy_s'):+8.1%}"
        f"{row['peak_allocated'] / 2**30:10.3f}{each.off(each.peak, 'peak_allocated'):+8.1%}"
    )


def _mean(name: str, errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    if not sizes:
        return f"{name}: none"
    middle = f"mean {mean(sizes):.1%}, median {median(sizes):.1%}"
    return f"{name} ({len(sizes)}): {middle}, worst {max(errors, key=abs):+.1%}"


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--captures", type=Path, default=Path("captures"))
    parser.add_argument("--only", nargs="*", help="ids of rows")
    parser.add_argument("--operators", type=int, default=0, help="lines a program")
    options = parser.parse_args()
    options.captures.mkdir(parents=True, exist_ok=True)
    text = (options.folder / "rows.jsonl").read_text(encoding="utf-8")
    judged = []
    for row in map(json.loads, text.splitlines()):
        if options.only and row["id"] not in options.only:
            continue
        began = time.monotonic()
        judged.append(judge(row, options.folder, options.captures))
        taken = time.monotonic() - began
        print(f"{_line(judged[-1])}  ({taken:.0f} s)", file=sys.stderr, flush=True)
        ranked = sorted(judged[-1].operators.items(), key=lambda one: -one[1])
        for kind, seconds in ranked[: options.operators]:
            print(f"    {seconds * 1e3:10.3f} ms {kind}", file=sys.stderr)
    print("\n".join(lines(judged)))


if __name__ == "__main__":
    main()
