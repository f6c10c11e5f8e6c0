"""The report's section on where the step goes: its shares, alone or beside those of another prediction."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.analysis import metrics
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import pictures
from prestep.sim.exporters._html.sections import SMALLEST, legend
from prestep.sim.markup import Markup, element, markup, table
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


def compared(named: Sequence[tuple[str, Prediction]]) -> Markup:
    """Shares of several predictions, a bar each to one scale, and a table of all; differences to the first, if two."""
    whole = max(result.step_time for _, result in named)
    parts = [_parts(result) for _, result in named]
    bars = markup(
        *(
            element("p", f"{name}: {format_duration(result.step_time)}", class_="soft")
            + pictures.stacked(own, f"Shares of the step: {name}", whole)
            for (name, result), own in zip(named, parts, strict=True)
        )
    )
    spent = [
        {name: seconds for name, seconds, _ in words.shares(result)}
        for _, result in named
    ]
    cells = []
    for share in dict.fromkeys(name for one in spent for name in one):
        times = [one.get(share, 0.0) for one in spent]
        more = [format_difference(times[1] - times[0])] if len(times) == 2 else []
        cells.append((share, *map(format_duration, times), *more))
    heads = ["share", *(name for name, _ in named)]
    heads += ["difference"] if len(named) == 2 else []
    return bars + _legend([part for own in parts for part in own]) + table(heads, cells)


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
