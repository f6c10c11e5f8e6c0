"""What `prestep run` does before it needs the simulator, which is slow to import: a wrong name or key is told first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim.commands.handlers.run_options import trace_part
from prestep.sim.spec.load import scenario_of
from prestep.sim.spec.scenario_file import tables_of
from prestep.sim.tools.catalog import find_scenario


def run(
    scenario: str | None,
    trace: Path | None,
    report: Path | None,
    each: tuple[str, ...],
    trace_window: str,
    trace_ranks: str,
    overrides: tuple[str, ...],
    **options: Any,
) -> None:
    part = trace_part(trace, report, each, trace_window, trace_ranks)
    path = find_scenario(scenario)
    loaded = scenario_of(tables_of(path), path, overrides)

    from prestep.sim.commands.handlers.run_scenario import run_scenario

    run_scenario(
        loaded, path, trace=trace, part=part, report=report, each=each, **options
    )
