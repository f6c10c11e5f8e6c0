"""The report's section on what a time rests on: evidence, what had no measurement, and how sure the step time is."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.analysis.prediction import Fallback, Prediction
from prestep.sim.exporters._html import pictures, sections
from prestep.sim.markup import element, markup, paragraph, table
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
    text = pictures.stacked(parts, "Share of the step by evidence") if parts else ""
    text += sections.legend(
        [(colour, f"{grade} {told}") for grade, _, colour, told in parts]
    )
    text += _fallbacks(result.fallbacks)
    text += _uncertainty(result)
    return text + _warnings(result.warnings)


def _fallbacks(fallbacks: Sequence[Fallback]) -> str:
    """What no measurement covers, the most time first; the small ones together."""
    if not fallbacks:
        return ""
    rows = [
        (f.what, f.grade, count(f.count), percent(f.share))
        for f in fallbacks[:MOST_FALLBACKS]
        if f.share >= sections.SMALLEST
    ]
    if rest := fallbacks[len(rows) :]:
        times, share = sum(f.count for f in rest), sum(f.share for f in rest)
        if share >= sections.SMALLEST:
            rows.append((f"{len(rest)} more", "", count(times), percent(share)))
    first = "fallback: not covered by a measurement or a fit"
    return table((first, "grade", "times", "of the time"), rows, texts=2)


def _warnings(warnings: Sequence[str]) -> str:
    """The first in full; more than a reader reads are behind a click."""
    texts = [paragraph(f"Warning: {warning}") for warning in warnings]
    if len(texts) <= MOST_WARNINGS + 1:
        return markup(*texts)
    shown, more = texts[:MOST_WARNINGS], texts[MOST_WARNINGS:]
    summary = element("summary", f"{len(more)} more warnings")
    return markup(*shown, element("details", summary, *more))


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
        f"In {100 * sure.nominal:.0f} of 100 cases the measured step should lie between {low} and {high}, from the "
        "errors of the constants on the critical path, as held-out measurements show them."
    )
    heads = (
        "makes it uncertain",
        "grade",
        "on the critical path",
        "its error (one sigma)",
        "of the variance",
    )
    return paragraph(head) + table(heads, rows, texts=2)
