"""Fits host costs of framework operations to host-bound steps of tiny models.

    python -m lab.fit.calibrate_host cases/h200/host_4gpu.jsonl [-o pytorch-eager.toml]

The steps are so small that the GPU waits for the host throughout, so a step takes the sum of its host operations:
``time = sum(count[name] * cost[name])`` for the busiest rank. The costs minimise the squared relative errors plus a
penalty on their distance, in log, from the values in the file, which decides what the rows cannot tell apart.
Every third row is held out; its error is printed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from prestep.validation.fit.machine_steps import counts_of
from prestep.validation.formats.rows import Row, read_rows
from prestep.workloads.host_costs import host_costs

PRIOR_WEIGHT = 0.02  # one factor of e from the prior costs as much as 2 % on one row
HELD_OUT_EVERY = 3


def fit(
    rows: list[Row], counts: list[dict[str, float]], prior: dict[str, float]
) -> dict[str, float]:
    """Seconds by operation, for those that occur in the rows; what costs nothing (a captured graph's) stays so."""
    names = sorted({name for c in counts for name in c if prior[name] > 0})
    matrix = np.array([[c.get(name, 0.0) for name in names] for c in counts])
    measured = np.array([row.measured for row in rows])
    start = np.log([prior[name] for name in names])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [matrix @ np.exp(x) / measured - 1.0, PRIOR_WEIGHT * (x - start)]
        )

    result = least_squares(residuals, start)
    return dict(zip(names, np.exp(result.x).tolist(), strict=True))


def errors(
    rows: list[Row], counts: list[dict[str, float]], costs: dict[str, float]
) -> list[tuple[str, float]]:
    """(row, signed relative error) of the sum of host operations."""
    return [
        (r.name, sum(costs[k] * n for k, n in c.items()) / r.measured - 1.0)
        for r, c in zip(rows, counts, strict=True)
    ]


def rewrite(path: Path, costs: dict[str, float]) -> None:
    """Puts fitted costs (microseconds) into a framework file, keeping everything else."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name = line.partition("=")[0].strip()
        match = re.match(r"^(\w+)\s*=\s*[\d.]+(.*)$", line)
        lines.append(
            f"{name} = {costs[name] * 1e6:.3g}{match[2]}"
            if match and name in costs
            else line
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Fits, prints fitted and held-out errors, writes the file if asked to."""
    options = _options()
    rows = [
        row
        for row in read_rows(options.rows)
        if not row.error and not row.case.get("compile")
    ]
    counts, prior = [counts_of(row) for row in rows], host_costs("pytorch-eager")
    _try(rows, counts, prior)
    final = prior | fit(rows, counts, prior)
    for name, error in errors(rows, counts, final):
        print(f"  {name:28s} {100 * error:+6.1f} %")
    for name in sorted(final):
        print(f"{name:28s} {final[name] * 1e6:8.1f} us")
    if options.out:
        rewrite(options.out, final)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", type=Path, dest="out")
    return parser.parse_args()


def _try(
    rows: list[Row], counts: list[dict[str, float]], prior: dict[str, float]
) -> None:
    """Prints the errors of a fit that leaves rows out, on both parts."""
    places = range(len(rows))
    used = [i for i in places if i % HELD_OUT_EVERY != 1]
    trial = prior | fit([rows[i] for i in used], [counts[i] for i in used], prior)
    others = [i for i in places if i not in used]
    for label, chosen in (("fitted", used), ("held out", others)):
        signed = errors([rows[i] for i in chosen], [counts[i] for i in chosen], trial)
        mean = 100 * np.mean([abs(error) for _, error in signed])
        print(f"{label}: n {len(signed)}, mean |error| {mean:.1f} %")


if __name__ == "__main__":
    main()
