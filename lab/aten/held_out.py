"""`python -m lab.aten.held_out`: what tables of ATen operations say of the cases that were held out."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from lab.aten import cases
from lab.aten.cases import Case
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import Gpu


def errors(gpu: Gpu, measured: Iterable[Case]) -> Mapping[str, list[float]]:
    """Log of predicted over measured seconds of each held-out case, by family."""
    families: dict[str, list[float]] = defaultdict(list)
    for case in measured:
        if case.held_out and len(case.kernels) == 1:
            predicted = gpu.running(case.kernels[0])
            families[case.family].append(math.log(predicted / case.seconds))
    return families


def lines(families: Mapping[str, list[float]]) -> list[str]:
    """A Markdown table: cases, median and mean of the error, bias."""
    rows = [
        "| family | cases | median | mean | bias |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family, logs in sorted(families.items()):
        sizes = [abs(log) for log in logs]
        cells = (
            family,
            str(len(logs)),
            f"{statistics.median(sizes):.1%}",
            f"{statistics.mean(sizes):.1%}",
            f"{statistics.mean(logs):+.1%}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Print the table of a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", nargs="?", default="h200")
    name = parser.parse_args().gpu
    measured = cases.measured(name)
    print("\n".join(lines(errors(load_gpu(name), measured))))


if __name__ == "__main__":
    main()
