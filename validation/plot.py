"""A comparison as a picture: predicted over measured step time, and the signed errors of every family."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.rows import FAMILIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from validation.compare import Case, Report

# Okabe and Ito's colours (told apart by the colour-blind too), their yellow darkened for white paper.
COLOURS = dict(
    zip(
        FAMILIES,
        ("#000000", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#7F7F7F"),
        strict=True,
    )
)
BANDS = ((0.15, "#EFEFEF"), (0.05, "#DCDCDC"))
NAMED = 6  # the worst rows beyond the wider band carry their names
JITTER = 0.28


def write_plot(report: Report, path: Path) -> None:
    """Writes a PNG, or what the suffix of the path says (.svg, .pdf).

    Squares are rows that some constant was taken from, hollow marks rows whose own steps vary (not in the figures).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 6), layout="constrained")
    FigureCanvasAgg(figure)
    scatter, strip = figure.subplots(1, 2)
    cases = [case for case in report.cases if not case.prediction.error]
    _scatter(scatter, cases)
    _strip(strip, cases)
    figure.suptitle(_title(report))
    kind = path.suffix.lstrip(".") or "png"
    with path.open("wb") as file:  # given a name, matplotlib adds a suffix of its own
        # No dates or versions inside: the same report gives the same bytes.
        figure.savefig(file, dpi=130, format=kind, metadata={"Software": None} if kind == "png" else None)


def _title(report: Report) -> str:
    overall = report.select()
    if not overall.n:
        return f"{report.name}: nothing to compare"
    figures = f"mean error {overall.mape:.1%}, bias {overall.bias:+.1%}, worst {overall.worst:.1%}"
    missing = len(report.unpredicted) + len(report.skipped)
    absent = f", {missing} rows NOT in the picture" if missing else ""
    return f"{report.name}: {overall.n} steps, {figures}{absent}"


def _scatter(axes: Axes, cases: list[Case]) -> None:
    times = [time * 1e3 for case in cases for time in (case.row.measured, case.prediction.step_time) if time > 0]
    ends = [min(times, default=1.0) / 1.3, max(times, default=10.0) * 1.3]
    for share, colour in BANDS:
        low, high = ([end * factor for end in ends] for factor in (1 - share, 1 + share))
        axes.fill_between(ends, low, high, color=colour, linewidth=0, label=f"within {share:.0%}")
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    for case in cases:
        axes.scatter(case.row.measured * 1e3, case.prediction.step_time * 1e3, **_mark(case))
    for family in FAMILIES:
        if any(case.row.family == family for case in cases):
            axes.scatter([], [], s=26, color=COLOURS[family], label=family)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured step, ms", ylabel="predicted step, ms")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    for marker, fill, meaning in (("o", "grey", "predicted"), ("s", "grey", "fitted"), ("o", "none", "noisy")):
        axes.scatter([], [], s=26, marker=marker, facecolors=fill, edgecolors="grey", label=meaning)
    axes.set_aspect("equal")
    axes.legend(loc="upper left", fontsize=8, ncols=2, frameon=False)


def _strip(axes: Axes, cases: list[Case]) -> None:
    shown = [family for family in FAMILIES if any(case.row.family == family for case in cases)]
    for share, colour in BANDS:
        axes.axhspan(-share * 100, share * 100, color=colour, linewidth=0)
    axes.axhline(0, color="grey", linewidth=0.8)
    places: dict[str, tuple[float, float]] = {}
    for position, family in enumerate(shown):
        mine = [case for case in cases if case.row.family == family]
        for place, case in zip(_spread_out(position, len(mine)), mine, strict=True):
            axes.scatter(place, case.signed_error * 100, **_mark(case))
            places[case.row.name] = place, case.signed_error * 100
    axes.set(xticks=range(len(shown)), xticklabels=shown, ylabel="signed error, %", xlim=(-0.6, len(shown) - 0.2))
    _name_worst(axes, cases, places)


def _spread_out(position: int, count: int) -> list[float]:
    """Places side by side in the order of the report, so that the picture is the same every time."""
    if count < 2:
        return [float(position)] * count
    return [position - JITTER + 2 * JITTER * index / (count - 1) for index in range(count)]


def _name_worst(axes: Axes, cases: list[Case], places: dict[str, tuple[float, float]]) -> None:
    beyond = [case for case in cases if abs(case.signed_error) > BANDS[0][0] and not case.noisy]
    for case in sorted(beyond, key=lambda case: -abs(case.signed_error))[:NAMED]:
        axes.annotate(
            case.row.name, places[case.row.name], (0, -11), textcoords="offset points", ha="center", fontsize=7
        )


def _mark(case: Case) -> dict[str, Any]:
    colour = COLOURS.get(case.row.family, "black")
    return {
        "s": 26,
        "marker": "s" if case.fitted else "o",
        "facecolors": "none" if case.noisy else colour,
        "edgecolors": colour,
        "linewidths": 1.0,
        "zorder": 3,
    }
