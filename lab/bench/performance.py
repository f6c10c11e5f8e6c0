"""How long simulating takes, and how much memory: workloads of other simulators, played here.

    python -m lab.bench.performance            every workload, each in a process of its own, as Markdown
    python -m lab.bench.performance G2 G8      some of them
    python -m lab.bench.performance curve      a step on 8 to 131,072 GPUs

Peers' figures were measured with their own programs on a machine of this kind (two cores of an EPYC of the Zen 4
generation), optimised builds, one process from start to end; see lab/notes/performance.md.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass

from lab.bench import peers, steps
from lab.bench.case import Case

HEAD = (
    "case",
    "workload",
    "s (CPU)",
    "MB",
    "goal",
    "predicted",
    "peer's prediction",
    "difference",
    "peer",
    "counted",
)
MODULES = (peers, steps)
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}


# Prints seconds of processor time, MB, the prediction, and what was counted.
RUN = """
import json, resource
from {module} import CASES
time, counts = CASES["{name}"].run()
use = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([use.ru_utime + use.ru_stime, use.ru_maxrss / 1024, time, counts]))
"""


@dataclass(frozen=True)
class Measured:
    """One run: seconds of processor time and of the clock of the whole process, MB, prediction and counts."""

    cpu: float
    wall: float
    memory: float
    predicted: float
    counts: dict[str, float]


def measure(name: str) -> Measured:
    """Run one workload in a fresh process, which imports the module that has it and no other."""
    (module,) = (module for module in MODULES if name in module.CASES)
    code = RUN.format(module=module.__name__, name=name)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - start
    cpu, memory, predicted, counts = json.loads(done.stdout)
    return Measured(cpu, wall, memory, predicted, counts)


def table(names: list[str], times: int = 3) -> str:
    """Markdown: median of three runs, or so many, beside the peer's figures."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    for name in names:
        runs = sorted((measure(name) for _ in range(times)), key=lambda run: run.cpu)
        cells = _cells(name, CASES[name], runs[times // 2])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(name: str, case: Case, run: Measured) -> list[str]:
    ours, theirs = _microseconds(run.predicted), _microseconds(case.predicted)
    off = f"{run.predicted / case.predicted - 1:+.1%}" if ours and theirs else ""
    counts = ", ".join(f"{key} {value:,.4g}" for key, value in run.counts.items())
    met = run.cpu <= case.seconds and run.memory <= case.memory
    goal = f"{case.seconds:g} s, {case.memory:g} MB" + ("" if met else " **missed**")
    used = f"{run.cpu:.2f}", f"{run.memory:.0f}"
    return [name, case.title, *used, goal, ours, theirs, off, case.peer, counts]


def _microseconds(time: float) -> str:
    return "" if math.isnan(time) else f"{1e6 * time:,.1f} us"


if __name__ == "__main__":
    asked = [
        name
        for name in CASES
        if not sys.argv[1:]
        or any(name == a or name.startswith(f"{a}-") for a in sys.argv[1:])
    ]
    print(table(asked))
