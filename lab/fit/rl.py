"""Fits the constants of an RL step (`sim/rl/constants.toml`) to the groups that the set `rl` gives away.

There are few rows, so every constant is held near its guess: a factor of e^0.7 (2) off costs as much as an error of
20 % on one row. Groups that are judged are not read.

How much longer a GB200's host takes for a step of an engine (`MACHINE`, `[machines]` of the set's recipes.toml) is
fitted with them.

    python -m lab.fit.rl
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lab.formats.rl_rows import STEP_TIME, RlRow, read_rows, scenario_of
from prestep.sim.rl.constants import constants
from prestep.sim.rl.pools import Pools, pools_of
from prestep.sim.rl.step import step_of
from prestep.sim.rl.training import Trained, trained
from prestep.validation.sets.sets import folder_of, set_table

FOLDER = folder_of("rl")
#: What was guessed before any row was looked at, SI units.
GUESSES: Mapping[str, float] = {
    "step_host": 4e-3,
    "sequence_host": 10e-6,
    "tensor_host": 0.5e-3,
    "copy_bandwidth": 10e9,
    "coherent_bandwidth": 10e9,
    "step_overhead": 5.0,
}
WIDTH, ERROR = 0.7, 0.20
#: Fitted beside the constants, of rows on one machine alone. A linear layer of PyTorch takes the host of a GB200
#: 37.08 us and that of a DGX H100 13.48 us (NVIDIA/TransformerEngine, issue 2053).
MACHINE, FACTOR, SLOWER = "GB200", "engine_host_factor", 37.08 / 13.48
START = {**GUESSES, FACTOR: SLOWER}
STEPS = (0.3, 0.1, 0.03)


def fitted_rows() -> list[RlRow]:
    """The rows of the groups that may be fitted to."""
    groups = set(set_table("rl")["fitted"])
    files = set_table("rl")["rows"]
    rows = [row for file in files for row in read_rows(FOLDER / file)]
    return [row for row in rows if row.group in groups]


@dataclass(frozen=True)
class Known:
    """A row, and what no fitted value changes: its pools and their training."""

    row: RlRow
    pools: Pools
    trained: Trained

    def error(self, values: Mapping[str, float]) -> float:
        """Logarithm of the step with these values over the measured one."""
        known = {name: value for name, value in values.items() if name != FACTOR}
        pools = replace(self.pools, constants=constants().at(**known))
        if self.row.machine == MACHINE:
            pools = replace(pools, host_factor=values[FACTOR])
        step = step_of(pools, self.trained)
        return math.log(step.step_time / self.row.seconds(STEP_TIME))


def known_row(row: RlRow) -> Known:
    """A row with its training predicted."""
    pools = pools_of(scenario_of(row))
    return Known(row, pools, trained(pools))


def cost(values: Mapping[str, float], rows: list[Known]) -> float:
    """Squared errors of rows and of guesses, each over its width."""
    total = sum((row.error(values) / ERROR) ** 2 for row in rows)
    for name, value in values.items():
        total += (math.log(value / START[name]) / WIDTH) ** 2
    return total


def descend(
    function: Callable[[Mapping[str, float]], float], start: Mapping[str, float]
) -> dict[str, float]:
    """Coordinate by coordinate, in factors that become smaller."""
    at = dict(start)
    best = function(at)
    for step in STEPS:
        better = True
        while better:
            better = False
            for name in at:
                for factor in (math.exp(step), math.exp(-step)):
                    tried = {**at, name: at[name] * factor}
                    if (reached := function(tried)) < best - 1e-9:
                        at, best, better = tried, reached, True
    return at


def unseen(rows: list[Known]) -> float:
    """Root of the mean square of errors, each row by constants that its group had no part in."""
    squares = []
    for group in sorted({row.row.group for row in rows}):
        others = [row for row in rows if row.row.group != group]
        found = descend(partial(cost, rows=others), START)
        squares += [row.error(found) ** 2 for row in rows if row.row.group == group]
    return math.sqrt(sum(squares) / len(squares))


def main() -> None:
    rows = [known_row(row) for row in fitted_rows()]
    found = descend(partial(cost, rows=rows), START)
    print(f"cost {cost(found, rows):.2f}")
    for name, value in found.items():
        print(f"{name} = {value:.4g}")
    for row in rows:
        error = math.expm1(row.error(found))
        print(f"{row.row.name}: {row.row.seconds(STEP_TIME):.1f} s, {error:+.1%}")
    print(f"rows of a group that was left out: {unseen(rows):.3f}")


if __name__ == "__main__":
    main()
