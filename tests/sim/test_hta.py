"""Meta's HolisticTraceAnalysis reads a simulated folder as prestep means it; skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario

SCENARIO = Path(cli.__file__).parent / "examples" / "pipeline-zero-bubble.toml"
SMALL = ["model.layers=4", "training.microbatches=4"]


def covered(spans: Timeline) -> float:
    """Seconds in which at least one of the spans is at work."""
    order = np.argsort(spans["start"], kind="stable")
    start, end = spans["start"][order], np.maximum.accumulate(spans["end"][order])
    open_from = np.maximum(start, np.concatenate([[start[0]], end[:-1]]))
    return float(np.maximum(end - open_from, 0.0).sum())


@pytest.mark.slow
def test_its_breakdown_equals_ours(tmp_path: Path) -> None:
    """Computing, communicating alone and idle of every rank are those of the timeline, to its rounding (1 us a span)."""
    hta = pytest.importorskip(
        "hta.trace_analysis", reason="needs HolisticTraceAnalysis", exc_type=ImportError
    )
    options = [part for change in SMALL for part in ("--set", change)]
    made = CliRunner().invoke(
        cli.main, ["run", str(SCENARIO), *options, "--trace", f"{tmp_path}/"]
    )
    assert made.exit_code == 0, made.output
    try:
        found = (
            hta.TraceAnalysis(trace_dir=str(tmp_path), include_last_profiler_step=True)
            .get_temporal_breakdown(visualize=False)
            .set_index("rank")
        )
    except (AttributeError, TypeError) as error:  # it lags behind pandas' releases
        pytest.skip(f"HolisticTraceAnalysis does not run with this pandas: {error}")
    timeline = predict(load_scenario(SCENARIO, SMALL)).timeline
    assert timeline is not None and sorted(found.index) == [0, 1, 2, 3]
    for rank in range(4):
        mine = timeline.of_rank(rank)
        mine = mine.select(np.flatnonzero(~mine.matches("kind", "host")))
        compute = covered(mine.select(np.flatnonzero(mine.matches("kind", "kernel"))))
        busy, whole = covered(mine), float(mine["end"].max() - mine["start"].min())
        row, rounding = found.loc[rank], 1.0 * len(mine)
        assert row["compute_time(us)"] == pytest.approx(
            compute * 1e6, abs=rounding, rel=0.01
        )
        assert row["non_compute_time(us)"] == pytest.approx(
            (busy - compute) * 1e6, abs=rounding, rel=0.01
        )
        assert row["kernel_time(us)"] == pytest.approx(whole * 1e6, rel=1e-3)
        assert row["idle_time(us)"] == pytest.approx(
            (whole - busy) * 1e6, abs=rounding, rel=0.01
        )
