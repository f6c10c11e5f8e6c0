"""Fits how fast the hosts are on which NVIDIA measured NeMo Automodel (`host_factor` of the set `automodel`).

Of the rows that may be fitted to (set.toml), those whose GPUs wait for their hosts say it: Llama 3 70B with adapters in
a pipeline. The others do not change with it.

    python -m lab.fit.automodel
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.formats.automodel_rows import FOLDER, TIME, group_of, parse_row, read
from prestep.sim.predict import predict
from prestep.sim.spec.load import scenario_of

GROUP = "Llama3 70B|8"
FACTORS = tuple(tenth / 10 for tenth in range(10, 21))


def rows() -> Iterator[Mapping[str, str]]:
    """The rows of the group."""
    yield from (row for row in read(FOLDER / "rows.csv") if group_of(row) == GROUP)


def error(row: Mapping[str, str], factor: float) -> float:
    """Logarithm of the predicted step over the measured one, on hosts that take so many times as long."""
    tables = dict(parse_row(row).tables)
    tables["cluster"] = {**tables["cluster"], "host_factor": factor}
    step = predict(scenario_of(tables, Path(GROUP)))
    return math.log(step.step_time / float(row[TIME]))


def main() -> None:
    costs = {}
    for factor in FACTORS:
        errors = [error(row, factor) for row in rows()]
        costs[factor] = sum(one**2 for one in errors)
        told = ", ".join(f"{math.expm1(one):+.1%}" for one in errors)
        print(f"host_factor {factor:g}: {told}")
    print(f"host_factor = {min(costs, key=costs.__getitem__):g}")


if __name__ == "__main__":
    main()
