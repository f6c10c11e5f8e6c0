"""The share of their peak that products reach on AMD's GPUs: `python -m lab.fit.amd` prints it.

One number a GPU, fitted on one step: the 1F1B row of a section of the set "schedules", which is not judged. It stands
for hipBLASLt's kernels, for the clock under load, and for all that is not simulated of ROCm's host. Of other schedules
on the same machine nothing is taken.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scipy.optimize import brentq

from lab.sets.schedules import BASE, Row, rows_of
from prestep.sim import predict
from prestep.sim.analysis.effects import step_time as time_of
from prestep.sim.spec.load import load_scenario
from prestep.validation.sets.sets import asked, folder_of

SET = "schedules"
#: The tile model's other numbers: those of a GPU that nobody measured (`prestep.sim.costs.gemm.TYPICAL`).
TILES = {
    "floor": 2e-6,
    "tile_start": 1.5e-6,
    "exponent": 0.2,
    "memory_efficiency": 0.75,
}


def main() -> None:
    table, paths, _ = asked(SET, None)
    sections = {
        words: folder_of(SET) / file for words, file in table["sections"].items()
    }
    for path in paths:
        for row in rows_of(path, sections, []):
            if row.schedule == BASE:
                print(f"{row.name}: efficiency = {fitted(row):.4f}")


def fitted(row: Row) -> float:
    """The share of the peak at which the step takes as long as it was measured."""
    scenario = load_scenario(row.scenario)
    tokens = scenario.training.seq_len * (scenario.training.global_batch or 1)
    measured = tokens / row.tokens / (scenario.parallel.pp * scenario.parallel.dp)
    return float(
        brentq(lambda share: _step(row, share) - measured, 0.1, 1.0, xtol=1e-4)
    )


def _step(row: Row, share: float) -> float:
    """Seconds of the step if products reach this share of the peak."""
    scenario = load_scenario(row.scenario)
    fabric = predict.load_fabric(scenario)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trial.toml"
        numbers = {"efficiency": share} | TILES
        lines = [f"{key} = {value!r}" for key, value in numbers.items()]
        stated = ["format = 1", f'base = "{fabric.gpu_model}"', "[gemm]", *lines]
        path.write_text("\n".join(stated), encoding="utf-8")
        planned = predict.plan(scenario, replace(fabric, kernels=str(path)))
        return time_of(planned, predict.execute(planned))


if __name__ == "__main__":
    main()
