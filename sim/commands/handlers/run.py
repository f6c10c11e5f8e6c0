"""What `prestep run` does before it needs the simulator, which is slow to import: a wrong name is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.commands.handlers.run_options import trace_part
from sim.spec.scenario_file import tables_of
from sim.tools.catalog import find_scenario


def run(
    scenario: str | None,
    trace: Path | None,
    report: Path | None,
    each: tuple[str, ...],
    trace_window: str,
    trace_ranks: str,
    energy: bool,
    price_per_gpu_hour: float | None,
    price_per_kwh: float | None,
    pue: float,
    **options: Any,
) -> None:
    part = trace_part(trace, report, each, trace_window, trace_ranks)
    path = find_scenario(scenario)
    tables = tables_of(path)

    from sim.analysis.cost import Prices
    from sim.commands.handlers.run_scenario import run_scenario

    prices = Prices(price_per_gpu_hour, price_per_kwh, pue)
    run_scenario(
        tables,
        path,
        trace=trace,
        part=part,
        report=report,
        each=each,
        prices=prices if energy or prices != Prices() else None,
        **options,
    )
