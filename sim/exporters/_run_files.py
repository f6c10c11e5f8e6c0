"""The report that `prestep run` writes beside what it prints.

The report shows the measured runs that are like this one (`prestep.sim.record`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prestep.sim import exporters
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.planning.planned import Planned
from prestep.sim.record.measured_runs import lookup
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.tornado import short_tornado, tornado


def write_report(
    result: Prediction,
    path: Path,
    scenario: Scenario,
    each: Sequence[str],
    planned: Planned | None = None,
    remedies: Sequence[str] = (),
) -> Path:
    """Write the report, with a tornado of `each` or the short one, and the measured runs that are like it.

    `planned`: the scenario's step, where it was planned before; `remedies`: changes with which it would fit.
    """
    words = [word.strip() for text in each for word in text.split(",")]
    if words:
        whatifs = tornado(scenario, words, base=planned)
    else:
        whatifs = short_tornado(scenario, result, planned)
    measured = lookup(scenario, result.step_time)
    return exporters.write(
        result, path, "html", tornado=whatifs, known=measured, remedies=remedies
    )
