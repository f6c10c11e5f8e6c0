"""The report's section on measurements: of the scenario, of the same run in a validation set, and of its like."""

from __future__ import annotations

from html import escape
from typing import Any

from sim.analysis.prediction import Prediction
from sim.exporters import _words as words
from sim.exporters._html.svg import box, drawing, element, label, table
from sim.units import format_duration

Known = dict[str, Any]
_WIDE, _SIDE, _ROW = 1100.0, 230.0, 30.0
MOST = 6  # measurements of one run that are drawn


def measured(result: Prediction, known: Known | None) -> str:
    """Predicted beside measured; "" where nothing is known of this run or of its like.

    `known` is what `validation.index.measured.lookup` found: `cases` of the same run,
    `neighbours`, and errors of the `family`.
    """
    cases: list[Known] = known["cases"] if known else []
    rows = [(f"{case['set']}: {case['row']}", case["measured"]) for case in cases]
    if result.measured is not None and not any(
        abs(s / result.measured - 1) < 1e-3 for _, s in rows
    ):
        rows.insert(0, ("measured (scenario)", result.measured))
    parts = [_bars(result, rows[:MOST])] if rows else []
    if result.measured is not None and result.signed_error is not None:
        off = words.percent(result.signed_error, True)
        parts.insert(
            0,
            f"<p>The scenario says what was measured, {format_duration(result.measured)}. The prediction does not "
            f"use it and is off by {off}{_inside(result, result.measured)}.</p>",
        )
    if cases:
        parts.append(_cases(cases))
    if known and not rows:
        parts.append("<p>Nobody has measured this very run in the validation sets.</p>")
    if known:
        parts.append(_family(known["family"]) + _neighbours(known["neighbours"]))
    return "".join(parts)


def _bars(result: Prediction, rows: list[tuple[str, float]]) -> str:
    """The prediction with its interval, and under it every measurement, to one scale from zero."""
    sure = result.uncertainty
    most = 1.12 * max(
        [
            result.step_time,
            *(seconds for _, seconds in rows),
            sure.high if sure else 0.0,
        ]
    )
    scale = (_WIDE - _SIDE) / most
    drawn = []
    for at, (name, seconds) in enumerate([("predicted", result.step_time), *rows]):
        y, wide = at * _ROW, seconds * scale
        drawn.append(label(name[:36], 0, y + 19))
        colour = "forward" if at == 0 else "tp"
        drawn.append(
            box(
                _SIDE,
                y + 4,
                wide,
                _ROW - 8,
                f"{name}: {format_duration(seconds)}",
                style=f"fill:var(--{colour})",
            )
        )
        end = _SIDE + max(wide, sure.high * scale if sure else 0.0)
        drawn.append(label(format_duration(seconds), end + 8, y + 19, class_="soft"))
    if sure is not None:
        low, high, y = _SIDE + sure.low * scale, _SIDE + sure.high * scale, _ROW / 2
        told = element(
            "title",
            f"{sure.nominal:.0%} interval: {words.interval(sure)}".replace("%", " %"),
        )
        drawn.append(
            element(
                "path",
                told,
                d=f"M{low:.1f},{y:.1f}H{high:.1f}M{low:.1f},{y - 7:.1f}v14M{high:.1f},{y - 7:.1f}v14",
                class_="whisker",
            )
        )
        drawn += [
            element(
                "line", x1=x, x2=x, y1=_ROW, y2=_ROW * (len(rows) + 1), class_="limit"
            )
            for x in (low, high)
        ]
    return drawing(
        drawn, _WIDE, _ROW * (len(rows) + 1) + 4, "Predicted and measured step times"
    )


def _inside(result: Prediction, measured: float) -> str:
    sure = result.uncertainty
    if sure is None:
        return ""
    where = "within" if sure.low <= measured <= sure.high else "outside"
    return f"; the measurement is {where} its {sure.nominal:.0%} interval".replace(
        "%", " %"
    )


def _cases(cases: list[Known]) -> str:
    """Measurements of the same run, with the error of this prediction."""
    head = "<p>The same run is in the validation sets (same model, cluster, batch, layout and switches):</p>"
    rows = [
        (
            case["set"],
            case["row"],
            _role(case),
            format_duration(case["measured"]),
            format_duration(case["predicted"]),
            words.percent(case["error"], True),
        )
        for case in cases
    ]
    return head + table(
        ("set", "row", "", "measured", "this prediction", "error"), rows, texts=3
    )


def _role(case: Known) -> str:
    """Whether the error counts: constants were fitted to it, or not; and what else is to be known."""
    used = "constants were fitted to it" if case["fitted"] else "not used by any fit"
    return f"{used}; {case['note']}" if case["note"] else used


def _family(family: Known | None) -> str:
    if family is None:
        return "<p>No measured step shares its GPU: nothing here says how well it is predicted.</p>"
    shared = ", ".join(family["shared"])
    fitted = (
        "constants were fitted to all of them"
        if family["fitted"]
        else "those that no constant was fitted to"
    )
    told = (
        f"Of {family['n']:,} measured steps with the same {shared} ({family['what']}; {fitted}), "
        f"the predictions are off by {words.percent(family['error'])} in the mean, "
        f"bias {words.percent(family['bias'], True)}, worst {words.percent(family['worst'], True)}."
    )
    return f"<p>{escape(told)}</p>"


def _neighbours(cases: list[Known]) -> str:
    """The nearest other measured runs."""
    rows = [
        (
            f"{case['set']}: {case['row']}",
            case["differs"] or "other switches or links",
            _role(case),
            format_duration(case["measured"]),
            format_duration(case["predicted"]),
            words.percent(case["error"], True),
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
