"""The report's section on measurements: of the scenario, of the same run in a validation set, and of its like."""

from __future__ import annotations

from typing import Any

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.uncertainty import Uncertainty
from prestep.sim.exporters import _words as words
from prestep.sim.markup import (
    Markup,
    box,
    drawing,
    element,
    fill,
    for_each_window,
    label,
    markup,
    on_phone,
    paragraph,
    table,
    vertical,
)
from prestep.sim.units import format_duration, percent

Measured = dict[str, Any]
_ROW = 30.0
MOST = 6  # measurements of one run that are drawn


def measured(result: Prediction, evidence: Measured | None) -> Markup:
    """Predicted beside measured; "" where no measurement of this run or of its like exists.

    `evidence` is what `prestep.sim.record.measured_runs.lookup` returns: `cases` of the same run and
    `neighbours`.
    """
    cases: list[Measured] = evidence["cases"] if evidence else []
    rows = _measurements(result, cases)
    parts = [_scenario_measurement(result)]
    if rows:
        parts.append(_bars(result, rows[:MOST]))
    if cases:
        parts.append(_cases(cases))
    if evidence and not rows:
        parts.append(
            paragraph("Nobody has measured this very run in the validation sets.")
        )
    if evidence:
        parts.append(_expected(result))
        parts.append(_neighbours(evidence["neighbours"]))
    return markup(*parts)


def _measurements(result: Prediction, cases: list[Measured]) -> list[tuple[str, float]]:
    """(name, seconds) of the cases, and before them the scenario's own measurement if it is none of them."""
    rows = [(f"{case['set']}: {case['row']}", case["measured"]) for case in cases]
    own = result.measured
    if own is None or any(abs(seconds / own - 1) < 1e-3 for _, seconds in rows):
        return rows
    return [("measured (scenario)", own), *rows]


def _scenario_measurement(result: Prediction) -> str:
    if result.measured is None or result.signed_error is None:
        return ""
    error = percent(result.signed_error, True) + words.fitted(result)
    return paragraph(
        f"The scenario says what was measured, {format_duration(result.measured)}. The prediction does not "
        f"use it and is off by {error}{_inside(result, result.measured)}."
    )


def _bars(result: Prediction, measurements: list[tuple[str, float]]) -> Markup:
    """The prediction with its interval, and under it every measurement, to one scale from zero."""
    return for_each_window(lambda wide: _drawn_bars(result, measurements, wide))


def _drawn_bars(
    result: Prediction, measurements: list[tuple[str, float]], wide: float
) -> Markup:
    # On a phone a name stands above its bar, and the time gets the room beside it.
    side, above, room = (0.0, 18.0, 80.0) if on_phone(wide) else (230.0, 0.0, 90.0)
    interval = result.uncertainty
    high = interval.high if interval else 0.0
    rows = [("predicted", result.step_time), *measurements]
    scale = (wide - side - room) / max([high, *(seconds for _, seconds in rows)])
    drawn: list[Markup] = []
    for at, (name, seconds) in enumerate(rows):
        colour, top = "forward" if at == 0 else "tp", at * (_ROW + above)
        drawn.append(label(name[:36], 0, top + 19 - above / 6))
        drawn += _bar(name, seconds, side, top + above, scale, colour, high)
    bottom = (_ROW + above) * len(rows)
    if interval is not None:
        drawn += _interval(interval, side, above, scale, bottom)
    return drawing(drawn, wide, bottom + 4, "Predicted and measured step times")


def _bar(
    name: str,
    seconds: float,
    side: float,
    top: float,
    scale: float,
    colour: str,
    high: float,
) -> list[Markup]:
    """A step time; its text stands right of the interval's end `high`, whose line runs through every row."""
    wide, text = seconds * scale, format_duration(seconds)
    tooltip = f"{name}: {text}"
    end = side + max(wide, high * scale)
    return [
        box(side, top + 4, wide, _ROW - 8, tooltip, style=fill(colour)),
        label(text, end + 8, top + 19, class_="soft"),
    ]


def _interval(
    interval: Uncertainty, side: float, above: float, scale: float, bottom: float
) -> list[Markup]:
    """The whisker on the prediction's bar, and its ends drawn down through the measurements."""
    low, high = side + interval.low * scale, side + interval.high * scale
    y = above + _ROW / 2
    bar = f"M{low:.1f},{y:.1f}H{high:.1f}"
    caps = f"M{low:.1f},{y - 7:.1f}v14M{high:.1f},{y - 7:.1f}v14"
    tooltip = f"{words.nominal(interval)}: {words.interval(interval)}"
    return [
        element("path", element("title", tooltip), d=bar + caps, class_="whisker"),
        vertical(low, above + _ROW, bottom, class_="limit"),
        vertical(high, above + _ROW, bottom, class_="limit"),
    ]


def _inside(result: Prediction, measured: float) -> str:
    interval = result.uncertainty
    if interval is None:
        return ""
    where = "within" if interval.low <= measured <= interval.high else "outside"
    return f"; the measurement is {where} its {words.nominal(interval)}"


def _cases(cases: list[Measured]) -> str:
    """Measurements of the same run, with the error of this prediction."""
    head = "The same run is in the validation sets (same model, cluster, batch, layout and switches):"
    rows = [
        (
            case["set"],
            case["row"],
            _role(case),
            format_duration(case["measured"]),
            format_duration(case["predicted"]),
            percent(case["error"], True),
        )
        for case in cases
    ]
    return paragraph(head) + table(
        ("set", "row", "", "measured", "this prediction", "error"), rows, texts=3
    )


def _role(case: Measured) -> str:
    """Whether the error counts: constants were fitted to it, or not; and what else is to be known."""
    used = "constants were fitted to it" if case["fitted"] else "not used by any fit"
    return f"{used}; {case['note']}" if case["note"] else used


def _expected(result: Prediction) -> Markup:
    """The expected error, as the terminal has it: of the same measured steps."""
    near = result.expected_error
    if near is None:
        return paragraph(
            "Too few measured steps are like it to say how far off it may be."
        )
    return paragraph(
        f"Expected error {words.expected(near)} ({words.nearest(near)}): "
        f"bias {percent(near['bias'], True)}, worst {percent(near['worst'], True)}."
    )


def _neighbours(cases: list[Measured]) -> str:
    """The nearest other measured runs."""
    rows = [
        (
            f"{case['set']}: {case['row']}",
            case["differs"] or "other switches or links",
            _role(case),
            format_duration(case["measured"]),
            format_duration(case["predicted"]),
            percent(case["error"], True),
        )
        for case in cases
    ]
    heads = (
        "nearest measured steps",
        "what differs",
        "",
        "measured",
        "predicted",
        "error",
    )
    return table(heads, rows, texts=3) if rows else ""
