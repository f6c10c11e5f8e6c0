"""One run of a sweep: what a worker predicts, as a row of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import PrestepError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.grid import Spec

Row = dict[str, Any]
WATTS = ("gpu_power", "gpu_clock", "total_power", "step_energy", "energy_per_token")
SHARES = ("compute", "bubble", "straggler", "io", "host", "idle")


def run_one(spec: Spec) -> Row:
    """Predicts one run; a mistake in it is its `error`, so that one bad corner of a grid does not end the sweep."""
    overrides = [f"{key}={value}" for key, value in spec.changes]
    try:
        result = predict(load_scenario(spec.scenario, overrides))
    except PrestepError as error:
        return {"key": spec.key, "error": str(error)}
    return {"key": spec.key, "error": "", **_figures(result)}


def _figures(result: Prediction) -> Row:
    """The columns of a run that was predicted."""
    verdict, summary = result.out_of_memory, result.scenario
    return {
        "step_time": result.step_time,
        "mfu": result.mfu,
        "tokens_per_second_per_gpu": result.tokens_per_second_per_gpu,
        "tflops_per_gpu": result.tflops_per_gpu,
        **{name: summary.get(name) for name in ("gpus", "cluster", "model", "layout")},
        "peak_memory": None if verdict is None else verdict.needed,
        "fits": None if verdict is None else verdict.fits,
        **_shares(result.breakdown),
        "grounded": _total(result.evidence, ("measured", "fitted")),
        **{name: getattr(result.energy, name, None) for name in WATTS},
    }


def _shares(breakdown: Mapping[str, float]) -> Row:
    """Seconds by share; exposed communication of all axes together."""
    shares: Row = {name: breakdown.get(name, 0.0) for name in SHARES}
    exposed = [name for name in breakdown if name.startswith("exposed_")]
    return shares | {"exposed_communication": _total(breakdown, exposed)}


def _total(table: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(table.get(name, 0.0) for name in names)
