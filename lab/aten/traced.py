"""`python -m lab.aten.traced GPU TRACE...`: operations of profiler traces beside what the tables say of them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.aten import profiled
from lab.aten.profiled import Profiled
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import base


@dataclass
class Sum:
    """Operations of one name: how many, seconds of their kernels measured and predicted."""

    count: int = 0
    measured: float = 0.0
    predicted: float = 0.0

    def add(self, measured: float, predicted: float) -> None:
        """One more operation."""
        self.count += 1
        self.measured += measured
        self.predicted += predicted

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0 if self.measured else 0.0


def compared(gpu: Gpu, operations: Iterable[Profiled]) -> dict[str, Sum]:
    """Sums by operation of those that launched something and whose operands the trace shows."""
    sums: dict[str, Sum] = defaultdict(Sum)
    for each in operations:
        if each.kernels and not each.unseen:
            predicted = sum(map(gpu.running, kernels_of(each.operation)))
            sums[base(each.operation)].add(each.seconds, predicted)
    return sums


def lines(sums: dict[str, Sum]) -> list[str]:
    """Count, milliseconds measured and predicted, error: all operations, then the largest."""
    whole = Sum()
    for each in sums.values():
        whole.add(each.measured, each.predicted)
    ordered = sorted(sums.items(), key=lambda item: -item[1].measured)
    return [_line(name, each) for name, each in (("all", whole), *ordered)]


def _line(name: str, each: Sum) -> str:
    times = f"{each.measured * 1e3:10.3f} {each.predicted * 1e3:10.3f}"
    return f"{name:50} {each.count:6} {times} {each.error:+7.1%}"


def main() -> None:
    """Print a table for each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=12)
    options = parser.parse_args()
    gpu = load_gpu(options.gpu)
    for path in options.traces:
        sums = compared(gpu, profiled.read(path))
        print(path.name, *lines(sums)[: 1 + options.rows], sep="\n  ")


if __name__ == "__main__":
    main()
