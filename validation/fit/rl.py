"""Fits the constants of an RL step (`sim/rl/constants.toml`) to the groups that the set `rl` gives away.

There are few rows, so every constant is held near its guess: a factor of e^0.7 (2) off costs as much as an error of
20 % on one row. Groups that are judged are not read.

How much longer the host of a GB200 takes (`MACHINE`, `[machines]` of the set's recipes.toml) is fitted with them:
training is predicted again for each of a few factors.

    python -m validation.fit.rl
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from sim.rl.constants import Constants, constants
from sim.rl.pools import Pools, pools_of
from sim.rl.step import step_of
from sim.rl.training import Trained, trained
from validation.formats.rl_rows import STEP_TIME, RlRow, read_rows, scenario_of
from validation.sets.sets import CASES, set_table

FOLDER = CASES / "rl"
#: What was guessed before any row was looked at, SI units.
GUESSES: Mapping[str, float] = {
    "step_host": 4e-3,
    "sequence_host": 10e-6,
    "tensor_host": 0.5e-3,
    "copy_bandwidth": 10e9,
    "step_overhead": 5.0,
}
WIDTH, ERROR = 0.7, 0.20
#: A linear layer of PyTorch takes the host of a GB200 37.08 us and that of a DGX H100 13.48 us
#: (NVIDIA/TransformerEngine, issue 2053).
MACHINE, SLOWER = "GB200", 37.08 / 13.48
FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
STEPS = (0.3, 0.1, 0.03)


def fitted_rows() -> list[RlRow]:
    """The rows of the groups that may be fitted to."""
    groups = set(set_table("rl")["fitted"])
    files = set_table("rl")["rows"]
    rows = [row for file in files for row in read_rows(FOLDER / file)]
    return [row for row in rows if row.group in groups]


def cost(
    values: Mapping[str, float], known: list[tuple[RlRow, Pools, Trained]]
) -> float:
    """Squared errors of rows and of guesses, each over its width."""
    made = constants().at(**values)
    total = 0.0
    for row, pools, learned in known:
        step = step_of(replace(pools, constants=made), learned)
        measured = row.seconds(STEP_TIME)
        total += (math.log(step.step_time / measured) / ERROR) ** 2
    for name, value in values.items():
        total += (math.log(value / GUESSES[name]) / WIDTH) ** 2
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


def known_with(factor: float) -> list[tuple[RlRow, Pools, Trained]]:
    """Rows for fitting with their training, where hosts of `MACHINE` take longer by a factor."""
    known = []
    for row in fitted_rows():
        scenario = scenario_of(row)
        if row.machine == MACHINE:
            cluster = replace(scenario.cluster, host_factor=factor)
            scenario = replace(scenario, cluster=cluster)
        pools = pools_of(scenario)
        known.append((row, pools, trained(pools)))
    return known


def main() -> None:
    best: tuple[float, float, Mapping[str, float]] = math.inf, 1.0, GUESSES
    for factor in FACTORS:
        known = known_with(factor)
        values = descend(partial(cost, known=known), GUESSES)
        reached = cost(values, known) + (math.log(factor / SLOWER) / WIDTH) ** 2
        print(f"host_factor of {MACHINE} {factor:g}: cost {reached:.2f}")
        best = min(best, (reached, factor, values), key=lambda one: one[0])
    _, factor, found = best
    print(f"host_factor of {MACHINE} = {factor:g}")
    for name, value in found.items():
        print(f"{name} = {value:.4g}")
    made: Constants = constants().at(**found)
    for row, pools, learned in known_with(factor):
        step = step_of(replace(pools, constants=made), learned)
        measured = row.seconds(STEP_TIME)
        print(f"{row.name}: {measured:.1f} s, {step.step_time / measured - 1:+.1%}")


if __name__ == "__main__":
    main()
