"""The report's section on what a time rests on: evidence, what had no measurement, and how sure the step time is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters._html import pictures, sections
from prestep.sim.svg import table
from prestep.sim.units import count, format_duration, percent

_GRADE_COLOURS = {
    "measured": "good",
    "fitted": "forward",
    "datasheet": "host",
    "guess": "bad",
}
MOST = 8  # constants that are listed
MOST_FALLBACKS = 12
MOST_WARNINGS = 3


def evidence(result: Prediction) -> str:
    """What the time rests on, what had to do without a measurement, and warnings."""
    if not result.evidence and not result.fallbacks and not result.warnings:
        return ""
    parts = [
        (g, share, _GRADE_COLOURS.get(g, "other"), percent(share))
        for g, share in result.evidence.items()
    ]
    text = pictures.stacked(parts, "Share of the time by evidence") if parts else ""
    text += sections.legend(
        [(colour, f"{grade} {told}") for grade, _, colour, told in parts]
    )
    if result.fallbacks:
        rows = [
            (f.what, f.grade, count(f.count), percent(f.share))
            for f in result.fallbacks[:MOST_FALLBACKS]
            if f.share >= sections.SMALLEST
        ]
        if rest := result.fallbacks[len(rows) :]:
            sums = sum(f.count for f in rest), sum(f.share for f in rest)
            if sums[1] >= sections.SMALLEST:
                rows.append((f"{len(rest)} more", "", count(sums[0]), percent(sums[1])))
        text += table(
            (
                "fallback: not covered by a measurement or a fit",
                "grade",
                "times",
                "of the time",
            ),
            rows,
            texts=2,
        )
    text += _uncertainty(result)
    return text + _warnings(result.warnings)


def _warnings(warnings: Sequence[str]) -> str:
    """The first in full; more than a reader reads are behind a click."""
    told = [f"<p>Warning: {escape(warning)}</p>" for warning in warnings]
    if len(told) <= MOST_WARNINGS + 1:
        return "".join(told)
    shown, more = told[:MOST_WARNINGS], told[MOST_WARNINGS:]
    folded = f"<summary>{len(more)} more warnings</summary>{''.join(more)}"
    return f"{''.join(shown)}<details>{folded}</details>"


def _uncertainty(result: Prediction) -> str:
    """The interval of the step time, and the constants that make it as wide as it is."""
    sure = result.uncertainty
    if sure is None:
        return ""
    whole = sum((part.seconds * part.spread) ** 2 for part in sure.parts) or 1.0
    rows = [
        (
            part.constant,
            part.grade,
            format_duration(part.seconds),
            f"{100 * part.spread:.1f} %",
            percent((part.seconds * part.spread) ** 2 / whole),
        )
        for part in sure.parts[:MOST]
    ]
    low, high = format_duration(sure.low), format_duration(sure.high)
    head = (
        f"<p>In {100 * sure.nominal:.0f} of 100 cases the measured step should lie between {low} and {high}, from the "
        "errors of the constants on the critical path, as held-out measurements show them.</p>"
    )
    heads = (
        "makes it uncertain",
        "grade",
        "on the critical path",
        "its error (one sigma)",
        "of the variance",
    )
    return head + table(heads, rows, texts=2)
