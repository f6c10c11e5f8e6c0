"""Errors on what was held out of the fits: where the widths in sim/costs/uncertainty.toml come from.

    python -m lab.fit.widths [--rows FILE.csv]

Prints, by family and grade, the root of the mean squared error of kernels, collectives and host operations. It reads
no row that the coverage of steps is judged on. (Needs scipy for the host.) Then, for collectives alone, the widths that
nine in ten errors lie within; those of other GPUs and of networks need the published table (`--rows`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lab.fit.host_prices import fit, tiny_steps
from lab.fit.widths_alone import alone_widths
from lab.sets.steps import predict_row
from prestep.sim.analysis.constants import family_of
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import HARDWARE
from prestep.sim.costs.tables import read_rows
from prestep.topologies import load_cluster
from prestep.validation.formats.rows import Row
from prestep.validation.formats.rows import read_rows as rows_of
from prestep.validation.sets.sets import folder_of, validate
from prestep.workloads.host_costs import prices_and_counts

SMALL, LARGE = 2**17, 2**23  # bytes: latency below, bandwidth above
FOLDS = 3
MEASURED = folder_of("h200")
Line = tuple[str, float, int]


def kernels() -> Iterator[Line]:
    """By family and grade, weighted by time: errors of a kind in a trace that no table has seen."""
    sums = _held_out_times()
    for family, grade in sorted({key[:2] for key in sums}):
        pairs = [
            (math.log(ours / theirs), theirs)
            for key, (ours, theirs) in sums.items()
            if key[:2] == (family, grade)
        ]
        weight = sum(time for _, time in pairs)
        squares = sum(error**2 * time for error, time in pairs)
        yield f"{family} {grade}", math.sqrt(squares / weight), len(pairs)


def _held_out_times() -> dict[tuple[str, str, str, str], list[float]]:
    """Predicted and measured seconds of held-out kernels, by family, grade, kind and trace."""
    gpu = load_gpu("h200")
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in read_rows(HARDWARE / "h200-heldout.csv"):
        kind, grade = row.kernel.kind, gpu.evidence(row.kernel)
        entry = sums[family_of(kind), grade, kind, row.source]
        entry[0] += gpu.duration(row.kernel) * row.count
        entry[1] += row.duration * row.count
    return sums


def collectives() -> Iterator[Line]:
    """Held-out sizes of the set `collectives`, and collectives beside kernels."""
    points = [
        p
        for p in validate("collectives").points
        if not (p.fitted or p.error or p.faint)
    ]
    sizes = {p.name: p for p in points}
    small, large = [], []
    for name, point in sizes.items():
        size = _bytes(name)
        error = math.log(point.predicted / point.measured)
        if size >= LARGE or point.group == "overlap: collectives":
            large.append(error)
        elif size <= SMALL:
            small.append(error)
    yield "latency fitted", _rms(small), len(small)
    yield "bandwidth fitted", _rms(large), len(large)


def _bytes(name: str) -> float:
    """The size at the end of a row's name."""
    last = name.rpartition("/")[2]
    return float(last) if last.isdigit() else math.nan


def host() -> Iterator[Line]:
    """Steps of tiny models, a third held out at a time."""
    steps = tiny_steps(rows_of(MEASURED / "host_4gpu.jsonl"))
    prior, _ = prices_and_counts("pytorch-eager")
    signed: list[float] = []
    for fold in range(FOLDS):
        used = [step for i, step in enumerate(steps) if i % FOLDS != fold]
        prices, _ = fit(used, prior)
        signed += [step.off(prices) for step in steps[fold::FOLDS]]
    yield "host fitted", _rms(signed), len(signed)


def starts() -> Iterator[Line]:
    """Host factors of further starts of the measured machine, and their spread about the bundled one."""
    factors: dict[str, list[float]] = defaultdict(list)
    for start, row in _rows_by_start():
        plain = predict_row(replace(row, cluster={**row.cluster, "host_factor": 1.0}))
        factors[start].append(math.log(row.measured / plain.step_time))
    bundled = math.log(load_cluster("h200-host-4").cluster_facts.host_factor or 1.0)
    middles = {
        start: math.fsum(logs) / len(logs) for start, logs in sorted(factors.items())
    }
    for start, middle in middles.items():
        yield f"host start {start}", math.exp(middle), len(factors[start])
    spread = [0.0, *(middle - bundled for middle in middles.values())]
    yield "host_spread", _rms(spread), len(spread)


def _rows_by_start() -> Iterator[tuple[str, Row]]:
    """Rows of tiny models, each with the start of the machine that it ran after."""
    path = MEASURED / "host_starts.jsonl"
    tags = [json.loads(line)["start"] for line in path.read_text("utf-8").splitlines()]
    yield from zip(tags, rows_of(path), strict=True)
    for row in rows_of(MEASURED / "host_4gpu.jsonl"):
        if not row.error:
            yield "1", row


def _rms(errors: list[float]) -> float:
    return (
        math.sqrt(math.fsum(e * e for e in errors) / len(errors))
        if errors
        else math.nan
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.widths")
    parser.add_argument("--rows", type=Path, metavar="FILE.csv")
    options = parser.parse_args()
    for part in (kernels, collectives, host, starts):
        for name, width, count in part():
            print(f"{name:20} {width:.3f}  ({count})")
    for place, (widths, rows) in alone_widths(options.rows).items():
        print(
            f"alone {place:14} {', '.join(f'{name} {width:.3f}' for name, width in widths.items())}  ({rows})"
        )


if __name__ == "__main__":
    main()
