"""A comparison as a picture: predicted over measured time, and the signed errors of every group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from prestep.sim import pictures
from prestep.validation.formats.rows import FAMILIES
from prestep.validation.report.interface import PALETTE, Point, Report

BANDS = ((0.15, "#EFEFEF"), (0.05, "#DCDCDC"))
NAMED = 6  # the worst rows beyond the wider band carry their names
JITTER = 0.28
# Marker, face colour, meaning.
MARKS = (("o", "grey", "predicted"), ("s", "grey", "fitted"), ("o", "none", "noisy"))


def write_plot(report: Report, path: Path) -> None:
    """Writes a PNG, or what the suffix of the path says (.svg, .pdf).

    Squares are rows that some constant was taken from, hollow marks rows whose own steps vary (not in the figures).
    """
    figure = pictures.figure(12.5, 6, layout="constrained")
    scatter, strip = figure.subplots(1, 2)
    points = [point for point in report.points if not point.error]
    groups = _groups(points)
    _scatter(scatter, points, groups, report.unit)
    _strip(strip, points, groups)
    figure.suptitle(_title(report))
    pictures.save(figure, path)


def _groups(points: list[Point]) -> dict[str, str]:
    """Groups that have points and their colours: families of steps in their own order, others as they come."""
    colours = dict(zip(FAMILIES, PALETTE, strict=True))
    present = list(dict.fromkeys(point.group for point in points))
    if set(present) <= set(colours):
        return {name: colour for name, colour in colours.items() if name in present}
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(present)}


def _title(report: Report) -> str:
    overall = report.groups["all"]
    if not overall.n:
        return f"{report.name}: nothing to compare"
    figures = f"mean error {overall.mape:.1%}, bias {overall.bias:+.1%}, worst {overall.worst:.1%}"
    missing = sum(bool(point.error) for point in report.points) + len(report.skips)
    absent = f", {missing} rows NOT in the picture" if missing else ""
    return f"{report.name}: {overall.n} {report.unit}, {figures}{absent}"


def _scatter(
    axes: Axes, points: list[Point], groups: dict[str, str], unit: str
) -> None:
    """Predicted over measured times, ms."""
    times = [1e3 * t for p in points for t in (p.measured, p.predicted) if t > 0]
    ends = [min(times, default=1.0) / 1.3, max(times, default=10.0) * 1.3]
    _diagonal(axes, ends)
    for point in points:
        x, y = point.measured * 1e3, point.predicted * 1e3
        axes.scatter(x, y, **_mark(point, groups))
    labels = {"xlabel": f"measured {unit}, ms", "ylabel": f"predicted {unit}, ms"}
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, **labels)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_aspect("equal")
    _legend(axes, groups)


def _diagonal(axes: Axes, ends: list[float]) -> None:
    """Where predicted is measured, and the bands about it."""
    for share, colour in BANDS:
        low, high = ([end * f for end in ends] for f in (1 - share, 1 + share))
        within = f"within {share:.0%}"
        axes.fill_between(ends, low, high, color=colour, linewidth=0, label=within)
    axes.plot(ends, ends, color="grey", linewidth=0.8)


def _legend(axes: Axes, groups: dict[str, str]) -> None:
    """Colours of the groups, and what the marks mean."""
    for name, colour in groups.items():
        axes.scatter([], [], s=26, color=colour, label=name)
    for marker, fill, meaning in MARKS:
        look: dict[str, Any] = {"facecolors": fill, "edgecolors": "grey"}
        axes.scatter([], [], s=26, marker=marker, label=meaning, **look)
    size = 8 if len(groups) <= len(PALETTE) else 6
    axes.legend(loc="upper left", fontsize=size, ncols=2, frameon=False)


def _strip(axes: Axes, points: list[Point], groups: dict[str, str]) -> None:
    """Signed errors by group."""
    for share, colour in BANDS:
        axes.axhspan(-share * 100, share * 100, color=colour, linewidth=0)
    axes.axhline(0, color="grey", linewidth=0.8)
    places: dict[str, tuple[float, float]] = {}
    for position, name in enumerate(groups):
        mine = [point for point in points if point.group == name]
        for x, point in zip(_spread_out(position, len(mine)), mine, strict=True):
            places[point.name] = x, _error(point)
            axes.scatter(*places[point.name], **_mark(point, groups))
    axes.set(ylabel="signed error, %")
    _name_groups(axes, groups)
    _name_worst(axes, points, places)


def _name_groups(axes: Axes, groups: dict[str, str]) -> None:
    """Names of the groups along the axis, upright where they are many."""
    ends = -0.6, len(groups) - 0.2
    axes.set(xticks=range(len(groups)), xticklabels=groups, xlim=ends)
    axes.tick_params(axis="x", labelrotation=0 if len(groups) <= len(PALETTE) else 90)


def _error(point: Point) -> float:
    return (point.predicted / point.measured - 1) * 100


def _spread_out(position: int, count: int) -> list[float]:
    """Places side by side in the order of the report, so that the picture is the same every time."""
    if count < 2:
        return [float(position)] * count
    return [
        position - JITTER + 2 * JITTER * index / (count - 1) for index in range(count)
    ]


def _name_worst(
    axes: Axes, points: list[Point], places: dict[str, tuple[float, float]]
) -> None:
    beyond = [
        point
        for point in points
        if abs(_error(point)) > BANDS[0][0] * 100 and not point.faint
    ]
    for point in sorted(beyond, key=lambda point: -abs(_error(point)))[:NAMED]:
        axes.annotate(
            point.name,
            places[point.name],
            (0, -11),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )


def _mark(point: Point, groups: dict[str, str]) -> dict[str, Any]:
    colour = groups[point.group]
    return {
        "s": 26,
        "marker": "s" if point.fitted else "o",
        "facecolors": "none" if point.faint else colour,
        "edgecolors": colour,
        "linewidths": 1.0,
        "zorder": 3,
    }
