"""A comparison as one HTML file that needs nothing else: figures, scatter and residual plots, all cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prestep.sim.exporters import html
from prestep.sim.markup import (
    Markup,
    box,
    element,
    horizontal,
    label,
    markup,
    paragraph,
    table,
)
from prestep.sim.units import format_duration
from prestep.validation.report import coverage
from prestep.validation.report.interface import PALETTE, Point, Report, Table
from prestep.validation.report.report import (
    CHECK_HEAD,
    GROUP_HEAD,
    check_cells,
    group_cells,
    verdict,
)

WIDTH, HEIGHT, MARGIN = 560, 430, 58
GREY = "var(--soft)"
BANDS = ((0.15, "0.12"), (0.05, "0.2"))  # of the measured time, and how strong


def page(reports: Sequence[Report], more: Iterable[Table] = ()) -> str:
    """The whole file; `more` are tables to show first (what moved against a base)."""
    failed = [report.name for report in reports if not report.passed]
    answer = (
        f"Outside its limits: {', '.join(failed)}." if failed else "All checks pass."
    )
    parts: list[tuple[str, str, str]] = [
        ("moved", shown.title or "What moved", _table(shown)) for shown in more
    ]
    parts += [(report.name, verdict(report), _section(report)) for report in reports]
    return html.page("Predicted against measured", answer, parts, lost=bool(failed))


def _section(report: Report) -> str:
    points = [
        p for p in report.points if not p.error and p.measured > 0 and p.predicted > 0
    ]
    groups = dict.fromkeys(p.group for p in points)
    colours = {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(groups)}
    over = f"predicted over measured {report.unit}; bands: 5 % and 15 %"
    errors = "signed error over measured time; squares: fitted, hollow: noisy"
    pictures = (
        _figure(_scatter(points, colours), over),
        _figure(_residuals(points, colours), errors),
    )
    return markup(
        element("div", *pictures, class_="split"),
        element("div", *map(_key, colours.items()), class_="keys"),
        _table(Table("Checks", CHECK_HEAD, list(map(check_cells, report.checks)))),
        _table(Table("Slices", GROUP_HEAD, list(group_cells(report)))),
        paragraph(coverage.line(report)),
        _cases(report),
    )


def _key(group: tuple[str, str]) -> Markup:
    """A name and its colour."""
    name, colour = group
    return element("span", element("i", style=f"background:{colour}"), name)


def _cases(report: Report) -> Markup:
    """All rows, folded away."""
    counts = f"{len(report.points)} cases, {len(report.skips)} skipped"
    cases = [_table(table) for table in report.case_tables if table.rows]
    skips = [paragraph(f"skipped {skip.name}: {skip.reason}") for skip in report.skips]
    return element("details", element("summary", counts), *cases, *skips)


def _figure(drawing: str, caption: str) -> Markup:
    return element("figure", drawing, element("figcaption", caption))


def _table(shown: Table) -> Markup:
    """A table under its title; what fails is red."""
    title = element("h3", shown.title) if shown.title else ""
    rows = ([_cell(text) for text in row] for row in shown.rows)
    return markup(title, table(shown.head, rows))


def _cell(text: str) -> str:
    return element("b", text, class_="bad") if text in ("FAILED", "worse") else text


def _scatter(points: Sequence[Point], colours: dict[str, str]) -> str:
    """Predicted over measured times."""
    times = [time for point in points for time in (point.measured, point.predicted)]
    low, high = _range(times)
    across = _Axis(low, high, MARGIN, WIDTH - 12)
    up = _Axis(low, high, HEIGHT - MARGIN, 12)
    shapes = [*_diagonal(across, up), *_times_across(low, high)]
    shapes += _heights(
        up, {time: format_duration(time) for time in _decades(low, high)}
    )
    for point in points:
        place = across(point.measured), up(point.predicted)
        shapes.append(_point(point, *place, colours[point.group]))
    return _svg(shapes)


def _diagonal(across: _Axis, up: _Axis) -> list[Markup]:
    """Where predicted is measured, and the bands about it."""
    first, last = ends = 10**across.low, 10**across.high
    bands = [_band(across, up, ends, share, colour) for share, colour in BANDS]
    ends_ = {"x1": across(first), "y1": up(first), "x2": across(last), "y2": up(last)}
    return [*bands, element("line", stroke=GREY, **ends_)]


@dataclass(frozen=True)
class _Axis:
    """Places of times from 10**low to 10**high between two of the picture."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, time: float) -> float:
        share = (math.log10(time) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def _band(
    across: _Axis, up: _Axis, ends: tuple[float, float], share: float, colour: str
) -> Markup:
    """What lies within so much of the measured time."""
    below = [(time, time * (1 - share)) for time in ends]
    above = [(time, time * (1 + share)) for time in reversed(ends)]
    corners = [f"{across(x):.1f},{up(y):.1f}" for x, y in below + above]
    return element("polygon", fill=GREY, fill_opacity=colour, points=" ".join(corners))


def _times_across(low: float, high: float) -> list[Markup]:
    """Marks under a picture whose horizontal axis is time."""
    axis = _Axis(low, high, MARGIN, WIDTH - 12)
    return [
        _tick(axis(time), HEIGHT - MARGIN + 18, format_duration(time))
        for time in _decades(low, high)
    ]


def _heights(up: Callable[[float], float], values: Mapping[float, str]) -> list[Markup]:
    """Marks beside a picture, of values and what is written there."""
    return [_tick(MARGIN - 30, up(value) + 4, text) for value, text in values.items()]


def _residuals(points: Sequence[Point], colours: dict[str, str]) -> str:
    """Errors over measured times, cut off at the largest that is drawn."""
    low, high = _range([point.measured for point in points])
    errors = [point.predicted / point.measured - 1 for point in points]
    largest = max([0.2, *(min(2.0, abs(error)) for error in errors)])
    across, up = _Axis(low, high, MARGIN, WIDTH - 12), _ErrorAxis(1.08 * largest)
    shapes = [*_level(up), *_times_across(low, high)]
    marks = (-largest, -0.15, 0.0, 0.15, largest)
    shapes += _heights(up, {error: f"{error:+.0%}" for error in marks})
    for point, error in zip(points, errors, strict=True):
        place = across(point.measured), up(error)
        shapes.append(_point(point, *place, colours[point.group]))
    return _svg(shapes)


def _level(up: _ErrorAxis) -> list[Markup]:
    """Where the error is nothing, and the bands about it."""
    strips = [_strip(up, share, colour) for share, colour in BANDS]
    return [*strips, horizontal(up(0), MARGIN, WIDTH - 12, stroke=GREY)]


@dataclass(frozen=True)
class _ErrorAxis:
    """Heights of signed errors from -reach to reach; larger ones lie on the edge."""

    reach: float

    def __call__(self, error: float) -> float:
        middle, half = (HEIGHT - MARGIN + 12) / 2, (HEIGHT - MARGIN - 12) / 2
        return middle - max(-self.reach, min(self.reach, error)) / self.reach * half


def _strip(up: _ErrorAxis, share: float, colour: str) -> Markup:
    """The band of errors up to a share."""
    wide, high = WIDTH - MARGIN - 12, up(-share) - up(share)
    return box(MARGIN, up(share), wide, high, fill=GREY, fill_opacity=colour)


def _range(times: Sequence[float]) -> tuple[float, float]:
    """Powers of ten to draw between: what is there and a little more."""
    logs = [math.log10(time) for time in times] or [-3.0, 0.0]
    return min(logs) - 0.12, max(logs) + 0.12


def _decades(low: float, high: float) -> list[float]:
    return [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]


def _point(point: Point, x: float, y: float, colour: str) -> Markup:
    error = point.predicted / point.measured - 1
    times = f"measured {format_duration(point.measured)}, predicted {format_duration(point.predicted)}"
    tooltip = f"{point.name}: {times}, {error:+.1%}"
    look = {"fill": "none" if point.faint else colour, "stroke": colour}
    if point.fitted:
        return box(x - 3, y - 3, 6, 6, tooltip, **look)
    title = element("title", tooltip)
    return element("circle", title, cx=x, cy=y, r=3.2, **look)


def _tick(x: float, y: float, text: str) -> Markup:
    return label(text, x, y, text_anchor="middle", class_="soft")


def _svg(drawn: Iterable[str]) -> Markup:
    wide, high = WIDTH - MARGIN - 12, HEIGHT - MARGIN - 12
    frame = box(MARGIN, 12, wide, high, fill="none", stroke=GREY)
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "style": "min-width:0"}
    return element("svg", *drawn, frame, **size)
