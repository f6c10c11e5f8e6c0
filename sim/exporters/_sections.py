"""Sections of a result that only some scenarios have, as rows (what, how much) for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prestep.sim.planning.jitter import PAUSE
from prestep.sim.units import format_bytes, format_duration

_WITHOUT = {
    "without": "a host that takes no time",
    "cuda_graph": "one CUDA graph",
    "compiled": "compiled blocks",
}
_TIMES = ("save_stall", "step_time_beside", "time_until_durable", "load_time")


def saves(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What [checkpoint] costs."""
    times = {key: format_duration(report[key]) for key in _TIMES}
    written = f"{format_bytes(report['bytes'])} by {report['writers']} ranks"
    rows = [
        ("to", f"{report['storage']}, {written} ({report['mode']})"),
        ("training stands still", times["save_stall"]),
        ("step that saves", _saving(report["saving_step"])),
    ]
    if report["steps_beside"]:
        slower = f"{100 * report['background_slowdown']:.1f} % slower"
        steps = f"{report['steps_beside']} of {times['step_time_beside']}"
        rows.append(("steps beside", f"{steps}, {slower}"))
    rows.append(("durable after", times["time_until_durable"]))
    again = report["later"]
    if again["save_stall"] < report["save_stall"]:
        rows.append(("later saves stall", format_duration(again["save_stall"])))
    rows.append(("load", times["load_time"]))
    rows.append(("the save rests on", _percentages(report["evidence"])))
    if "step_time_with" in report:
        step = format_duration(report["step_time_with"])
        rows.append((f"every {report['every']} steps", f"{step} a step"))
    return rows


def _saving(step: Mapping[str, Any]) -> str:
    """The step that saves, with the save and without it."""
    with_save, without = (
        format_duration(step[key]) for key in ("step_time", "step_time_without")
    )
    return f"{with_save}, {without} without the save"


def _percentages(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts.items())


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


def data(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What [dataload] makes the step wait for."""
    state = (
        "input-bound"
        if table["input_bound"]
        else "data waits for the GPU"
        if not table["exposed"]
        else "no overlap"
    )
    rows = [("reading a step's data", format_duration(table["read_time"]))]
    if table["copy_time"]:
        rows.append(("copying it to the GPU", format_duration(table["copy_time"])))
    return [
        *rows,
        ("step with its data", f"{format_duration(table['step_time_with'])}: {state}"),
    ]


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
