"""Sections of a result that only some scenarios have, as rows (what, how much) for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prestep.sim.planning.jitter import PAUSE
from prestep.sim.units import format_duration

_WITHOUT = {
    "without": "a host that takes no time",
    "cuda_graph": "one CUDA graph",
    "compiled": "compiled blocks",
}


def host(effect: Mapping[str, Any], step: float) -> Iterator[tuple[str, str]]:
    """What the host does to a step of so many seconds."""
    saying = {"guess": "nobody says it", "scenario": "the scenario says it"}
    source = saying.get(effect["evidence"], "the cluster says it")
    yield "host_factor", f"{effect['factor']:.3g}, {source}"
    low, high = (format_duration(effect[key]) for key in ("step_low", "step_high"))
    yield f"a host of {effect['low']:.2g} to {effect['high']:.2g}", f"{low} to {high}"
    for key, name in _WITHOUT.items():
        if effect[key] is not None:
            change = 100 * (effect[key] / step - 1)
            yield name, f"{format_duration(effect[key])}  ({change:+.1f} %)"


def noise(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The step of `--replicas`."""
    return [
        *_distribution(table),
        ("noise", ", ".join(_noise(table["jitter"]))),
        ("replicas", f"{table['replicas']}, seed {table['seed']}"),
    ]


def _distribution(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the mean and, of several replicas, of what lies around it."""
    mean = format_duration(table["mean"])
    slower = f"{100 * table['slower']:+.2f} % on the step without noise"
    if table["replicas"] == 1:
        yield "mean step", f"{mean}, {slower}"
        return
    half = format_duration(table["half_width"])
    yield "mean step", f"{mean} ± {half} (95 % confidence), {slower}"
    share = 100 * table["std"] / table["mean"]
    yield "standard deviation", f"{format_duration(table['std'])}, {share:.2f} %"
    low, median, high = (
        format_duration(table["percentiles"][name]) for name in ("p5", "p50", "p95")
    )
    yield "5 % to 95 %", f"{low} to {high}, median {median}"


def _noise(jitter: Mapping[str, Any]) -> Iterator[str]:
    for name, amount in jitter.items():
        value = amount["value"]
        size = f"{value:g} /s" if name == PAUSE else f"{100 * value:g} %"
        yield f"{name} {size} ({amount['evidence']})"
