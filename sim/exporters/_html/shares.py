"""The report's section on where the step goes: its shares, alone or beside those of another prediction."""

from __future__ import annotations

from prestep.sim.analysis import metrics
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import pictures
from prestep.sim.exporters._html.sections import SMALLEST, legend
from prestep.sim.markup import element, table
from prestep.sim.units import format_difference, format_duration, percent

_COLOURS = {
    "compute": "forward",
    "bubble": "bubble",
    "straggler": "wait",
    "io": "io",
    "host": "host",
    "idle": "idle",
}
_Parts = list[tuple[str, float, str, str]]


def breakdown(result: Prediction) -> str:
    """Shares of the step, as a bar and a table."""
    parts = _parts(result)
    if not parts:
        return ""
    cells = [
        (name, format_duration(seconds), percent(part))
        for name, seconds, part in words.shares(result)
    ]
    return (
        pictures.stacked(parts, "Shares of the step")
        + _legend(parts)
        + table(("share", "time", "of the step"), cells)
    )


def compared(result: Prediction, before: Prediction) -> str:
    """Shares of two predictions, one bar above the other to one scale, and their differences."""
    old, new = _parts(before), _parts(result)
    whole = max(result.step_time, before.step_time)
    bars = (
        element("p", "before", class_="soft")
        + pictures.stacked(old, "Shares of the step before", whole)
        + element("p", "with the changes", class_="soft")
        + pictures.stacked(new, "Shares of the step", whole)
    )
    was, now = (
        {name: seconds for name, seconds, _ in words.shares(one)}
        for one in (before, result)
    )
    cells = []
    for name in {**now, **was}:
        one, other = was.get(name, 0.0), now.get(name, 0.0)
        cells.append(
            (
                name,
                format_duration(one),
                format_duration(other),
                format_difference(other - one),
            )
        )
    heads = ("share", "before", "with the changes", "difference")
    return bars + _legend([*new, *old]) + table(heads, cells)


def _legend(parts: _Parts) -> str:
    """What can be seen of the bars; a share that the table leaves out has no colour to look for."""
    whole = sum(seconds for _, seconds, _, _ in parts)
    seen = {
        name: (colour, name)
        for name, seconds, colour, _ in parts
        if seconds >= SMALLEST * whole
    }
    return legend(list(seen.values()))


def _parts(result: Prediction) -> _Parts:
    return [
        (
            words.share_name(key),
            seconds,
            _COLOURS.get(key, _axis(key)),
            format_duration(seconds),
        )
        for key, seconds in result.breakdown.items()
        if seconds > 0
    ]


def _axis(key: str) -> str:
    axis = key.removeprefix("exposed_")
    return axis if axis in metrics.AXES else "other"
