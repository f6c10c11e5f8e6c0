"""The report that `prestep run` writes beside what it prints.

The report shows the measured runs that are like this one (`prestep.sim.record`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prestep.sim import exporters, sheets
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters._html import sections
from prestep.sim.planning.planned import Planned
from prestep.sim.record.measured_runs import lookup
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import whatif_page
from prestep.sim.studies.tornado import short_tornado, tornado
from prestep.sim.studies.variants import Variant
from prestep.sim.tables import Sheet
from prestep.sim.units import format_difference


def write_variants(variants: Sequence[Variant], path: Path) -> Path:
    """Writes the report of a run and its variants (`prestep.sim.studies.variants.variants_of`)."""
    base = variants[0]
    if path.suffix == ".md":
        return exporters.write(base.result, path, "markdown", variants=variants)
    known = lookup(base.scenario, base.result.step_time)
    return exporters.write(base.result, path, "html", known=known, variants=variants)


def write_tornado(table: dict[str, Any], path: Path, name: str) -> None:
    """Writes what `prestep.sim.studies.tornado.tornado` found: its bars, and every change of every element."""
    rows = [
        (
            whatif_page.named(row),
            *(format_difference(c["difference"]) for c in row["changes"]),
        )
        for row in table["elements"]
    ]
    heads = ("element", *(f"{factor:g}x" for factor in table["factors"]))
    notes = whatif_page.coverage(table)
    answer = whatif_page.largest(table)
    bars = sections.whatif(table)
    every = Sheet("Every element", heads, rows, notes=notes)
    sheets.write(
        path, f"What matters most: {name}", answer, [every], first=("Bars", bars)
    )


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
    if path.suffix == ".md":
        return exporters.write(result, path, "markdown")
    words = [word.strip() for text in each for word in text.split(",")]
    if words:
        whatifs = tornado(scenario, words, base=planned)
    else:
        whatifs = short_tornado(scenario, result, planned)
    measured = lookup(scenario, result.step_time)
    return exporters.write(
        result, path, "html", tornado=whatifs, known=measured, remedies=remedies
    )
