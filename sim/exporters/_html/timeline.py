"""The report's section on the timeline: the spans of the last step and its controls; the script draws them."""

from __future__ import annotations

from prestep.sim.analysis import metrics
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters._html.gantt import Data, gantt
from prestep.sim.exporters._html.sections import embedded, legend
from prestep.sim.markup import Markup, element, markup, number, paragraph
from prestep.sim.units import format_duration

_SPAN_KEYS = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("other", "other work"),
    ("dp", "dp"),
    ("tp", "tp"),
    ("pp", "pp"),
    ("cp", "cp"),
    ("ep", "ep"),
    ("wait", "waiting for other ranks"),
    ("host", "host"),
    ("io", "copies"),
)


def timeline(result: Prediction) -> str:
    """The Gantt chart with its controls."""
    data = gantt(result)
    if data is None:
        return ""
    used = _used(data)
    buttons = (
        ("+", "zoom in"),
        ("-", "zoom out"),
        ("ArrowLeft", "earlier"),
        ("ArrowRight", "later"),
        ("Home", "all"),
        ("p", "previous span"),
        ("n", "next span"),
    )
    bar = markup(
        *(element("button", text, type="button", data_key=key) for key, text in buttons)
    )
    hint = (
        "Point at a span, or click it to keep its details; drag to move; hold Ctrl or Shift and scroll to zoom; "
        "hold Shift and drag to sum a range. Keys: W S A D (or + - ← →), Home, n and p for "
        "the next and previous span, ↑ ↓ for other rows."
    )
    if data["patterns"]:
        hint += " Zoom in on rows of layers, or look for a kernel, and they are opened."
    if any(axis == "mp" for _, _, axis, *_ in data["facts"]):
        hint += " mp: what all ranks of one replica exchange, such as the norm of gradients."
    controls = Markup(
        f'<div class="bar">{bar}<button type="button" id="sum" aria-pressed="false">sum a range</button>'
        '<label>find <input type="search" id="find" size="14" placeholder="mm, dp, backward"></label>'
        '<span id="hits" class="soft" role="status"></span><label hidden>show '
        f'<select id="ranks"><option value="">all ranks</option></select></label>'
        f'<span id="span" class="soft" role="status"></span></div>'
        f'<div class="over"><canvas id="gantt" tabindex="0" role="application" aria-label="Timeline of the last step" '
        f'aria-describedby="detail"></canvas><div id="tip" hidden></div></div>'
    )
    return (
        paragraph(_ranks_drawn(data, result.step_time))
        + controls
        + element("div", hint, id="detail", aria_live="polite", class_="soft")
        + legend([key for key in _SPAN_KEYS if key[0] in used])
        + embedded("gantt-data", data)
    )


#: Relative difference from which on spans of a step lie further apart than a step is long.
_APART = 1e-3


def _step_drawn(length: float, step: float) -> str:
    """How long a step is, and why its spans may lie further apart: a page has one step time."""
    said = f"A step takes {format_duration(step)}."
    if abs(length / step - 1) < _APART:
        return said
    if length < step:
        return f"{said} The spans of the last one lie within {format_duration(length)}."
    return (
        f"{said} Ranks begin and end it at different times, and work on two steps at once: "
        f"the spans of the last one lie within {format_duration(length)}."
    )


def _ranks_drawn(data: Data, step: float) -> str:
    text = _step_drawn(data["length"] / 1e9, step)
    if data["opens"]:
        text += (
            f" It opens on microbatch {data['opens'][2]}; “all” shows the whole step."
        )
    if data["ranks"] == data["shown"] == len({row["rank"] for row in data["rows"]}):
        return text
    text += " Ranks that do the same at the same time are one row: "
    text += (
        f"the rows stand for {number(data['shown'])} of {number(data['ranks'])} ranks."
    )
    if any(row["merged"] for row in data["rows"]):
        text += " Neighbouring short spans are drawn as one; --trace has every one."
    return text


def _used(data: Data) -> set[str]:
    used = {"wait"} if any(any(row["w"]) for row in data["rows"]) else set()
    for kind, phase, axis, *_ in data["facts"]:
        if kind == "kernel":
            used.add(
                phase if phase in ("forward", "backward", "optimizer") else "other"
            )
        elif kind in ("host", "copy"):
            used.add("io" if kind == "copy" else "host")
        else:
            used.add(axis if axis in metrics.AXES else "other")
    return used
