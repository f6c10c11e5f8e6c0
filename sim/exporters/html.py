"""The result as one HTML file: pictures, tables and the evidence behind them; needs no network and no other file.

The page is written without a library: tables and SVG that also print, and a small script for the timeline and the
moment of the link map. It follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from prestep.sim import __version__, files
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _answers as answers
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import compared, grounds, sections, shares, timeline
from prestep.sim.markup import Markup, element, markup

SUFFIXES = (".html", ".htm")


Table = dict[str, Any]


def write(
    result: Prediction,
    path: str | Path,
    tornado: Table | None = None,
    known: Table | None = None,
    remedies: Sequence[str] = (),
) -> None:
    """Write the report.

    `tornado` is what `prestep.sim.studies.tornado.tornado` found, for the section on what-ifs; `known` what
    the validation sets have of
    this run and its like (`prestep.sim.record.measured_runs.lookup`); `remedies` are changes with which a step that
    does not
    fit would.
    """
    files.write_text(path, render(result, tornado, known, remedies))


def render(
    result: Prediction,
    tornado: Table | None = None,
    known: Table | None = None,
    remedies: Sequence[str] = (),
) -> str:
    """The report as HTML text."""
    made = [section for section in _sections(result, tornado, known) if section[2]]
    links = markup(*(element("a", title, href=f"#{name}") for name, title, _ in made))
    body = markup(*(section(*one) for one in made))
    title = escape(words.title(result))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be loaded or sent, whatever a name in the scenario says.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{_file("page.css")}</style></head>\n'
        f'<body><a class="skip" href="#step">To the figures</a><header><h1>{title}</h1>'
        f"{_answer(result, remedies)}"
        f'<nav aria-label="Sections">{links}'
        '<button type="button" id="theme" hidden>light or dark</button></nav></header>\n'
        f"<main>{sections.tiles(result)}{body}</main>\n"
        f"<footer>Predicted by prestep {escape(__version__)}. "
        "Times are simulated; what they rest on is under Evidence.</footer>\n"
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def _answer(result: Prediction, remedies: Sequence[str]) -> str:
    """The sentence that a terminal's page begins with."""
    verdict = result.out_of_memory
    kind = "answer" if verdict is None or verdict.fits else "answer lost"
    return element("p", answers.of_run(result, remedies), class_=kind)


def section(name: str, title: str, *parts: str) -> Markup:
    """A section of a page, which links to `name` lead to."""
    head = element("h2", title, id=f"{name}-title")
    return element("section", head, *parts, id=name, aria_labelledby=f"{name}-title")


def _sections(
    result: Prediction, tornado: Table | None, known: Table | None
) -> Iterator[tuple[str, str, str]]:
    """(anchor, title, HTML) in the order of the page; sections with nothing to say are empty."""
    yield "timeline", "Timeline", timeline.timeline(result)
    yield "step", "Where the step goes", shares.breakdown(result)
    yield "measured", "Predicted and measured", compared.measured(result, known)
    yield "critical", "Critical path", sections.critical(result)
    yield "network", "Links", sections.network(result)
    yield "kernels", "Kernels", sections.kernels(result)
    yield "memory", "Memory", sections.memory(result)
    yield "whatif", "What if", sections.whatif(tornado)
    yield "evidence", "Evidence and uncertainty", grounds.evidence(result)
    yield "scenario", "What was run", sections.scenario(result)


def _file(name: str) -> str:
    return (resources.files("prestep.sim.exporters._html") / name).read_text(
        encoding="utf-8"
    )
