"""`python -m lab.report.host_least --programs FOLDER... --captures FOLDER`: host time of programs, least of all steps.

A host that other programs share is slow for seconds at a time, so the least time of a step says what its Python,
dispatcher and launches take. Each measured step began with an idle GPU. Programs are captured as they are, without a
GPU; the prediction is the sum of what `pytorch-eager.toml` says of every call, operation and launch, at host factor 1.
Every second program, by name, is in either half: prices that were fitted on one half are judged on the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import prestep
from prestep.sim.costs import load_gpu
from prestep.sim.errors import PrestepError
from prestep.sim.planning.planned import with_launches
from prestep.workloads.capture import recording
from prestep.workloads.capture.lower import lower
from prestep.workloads.capture.recorder import captured
from prestep.workloads.host_costs import host_costs
from prestep.workloads.host_work import THREAD

ROWS = prestep.HOME / "lab/cases/frameworks/hosts/h200_least.jsonl.gz"


@dataclass(frozen=True)
class Program:
    """Least seconds of its host in a step, of each run, and how often the step does what the host pays for."""

    name: str
    runs: tuple[float, ...]
    counts: Mapping[str, float]

    @property
    def least(self) -> float:
        return min(self.runs)

    def predicted(self, costs: Mapping[str, float]) -> float:
        return math.fsum(costs[name] * count for name, count in self.counts.items())


def measured(rows: Sequence[Path]) -> dict[str, tuple[list[str], list[float]]]:
    """Arguments, and least seconds of each run, by program."""
    programs: dict[str, tuple[list[str], list[float]]] = {}
    for path in rows:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                times = [s["s"] for s in row.get("steps", ()) if s["synced"]]
                if row["kind"] == "program" and times:
                    _, runs = programs.setdefault(row["name"], (row["args"], []))
                    runs.append(min(times))
    return programs


def counts_of(capture: Path, gpu: str = "h200") -> dict[str, float]:
    """What the host does in the recorded step, by the name of its cost; an operation's further kernels are launches."""
    lowered = lower(recording.read(capture), host_costs("captured"))
    counts = dict(next(iter(lowered.host_operations.values())))
    graph = with_launches(lowered.graph, load_gpu(gpu), 1.0)
    own, further = (g.programs[0].host.sum() for g in (lowered.graph, graph))
    return counts | {"launch": counts.get("launch", 0) + float(further - own)}


def programs(
    rows: Sequence[Path], folders: Sequence[Path], captures: Path
) -> Iterator[Program]:
    """Every measured program whose script is in one of the folders; its recording is made unless it is there."""
    for name, (args, runs) in sorted(measured(rows).items()):
        capture = captures / f"{name}.capture"
        try:
            if not capture.exists():
                script = _script(name, folders)
                if script is None:
                    print(f"{name}: its script is in no folder", file=sys.stderr)
                    continue
                captured((str(script), *args), capture, stop=True, quiet=True)
            yield Program(name, tuple(runs), counts_of(capture))
        except PrestepError as error:
            print(f"{name}: refused: {error}", file=sys.stderr)


#: Programs that are a script with arguments.
SCRIPTS = {"gpt-muon": "gpt", "trainer-gemma3": "trainer", "mobilenetv4": "maxvit"}


def _script(name: str, folders: Sequence[Path]) -> Path | None:
    stem = "small" if name.startswith("small-") else SCRIPTS.get(name, name)
    there = (folder / f"{stem}.py" for folder in folders)
    return next((path for path in there if path.exists()), None)


def lines(every: Sequence[Program], factor: float) -> Iterator[str]:
    """A line for each program, then means over all and over either half."""
    every_cost = host_costs("captured") | {"host_byte": 1 / THREAD}
    costs = {name: seconds * factor for name, seconds in every_cost.items()}
    errors: dict[str, list[float]] = defaultdict(list)
    yield f"{'program':20}{'least ms':>10}{'predicted':>10}{'off':>8}{'again':>8}"
    for at, each in enumerate(every):
        off = each.predicted(costs) / each.least - 1
        for part in ("all", "first half" if at % 2 == 0 else "second half"):
            errors[part].append(off)
        again = f"{max(each.runs) / each.least - 1:+8.1%}" if len(each.runs) > 1 else ""
        milliseconds = f"{each.least * 1e3:10.2f}{each.predicted(costs) * 1e3:10.2f}"
        yield f"{each.name:20}{milliseconds}{off:+8.1%}{again}"
    for part, some in errors.items():
        yield _means(part, some)


def _means(part: str, errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    middle = median(1 + error for error in errors)
    around = mean(abs((1 + error) / middle - 1) for error in errors)
    return (
        f"{part} ({len(errors)}): mean {mean(sizes):.1%}, median {median(sizes):.1%}, bias {mean(errors):+.1%}, "
        f"worst {max(errors, key=abs):+.1%}; around their median ({middle:.2f}) {around:.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="*", default=[ROWS])
    parser.add_argument("--programs", type=Path, nargs="+", default=[])
    parser.add_argument("--captures", type=Path, default=Path("captures"))
    parser.add_argument("--factor", type=float, default=1.0, help="of the host")
    parser.add_argument("--json", type=Path, help="write runs and counts there")
    options = parser.parse_args(arguments)
    options.captures.mkdir(parents=True, exist_ok=True)
    every = list(programs(options.rows, options.programs, options.captures))
    if options.json is not None:
        table: dict[str, Any] = {p.name: [p.runs, p.counts] for p in every}
        options.json.write_text(json.dumps(table), encoding="utf-8")
    print("\n".join(lines(every, options.factor)))


if __name__ == "__main__":
    main()
