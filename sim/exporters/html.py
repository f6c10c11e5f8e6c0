"""The result as one HTML file: pictures, tables and the evidence behind them; needs no network and no other file.

The page is written without a library: tables and SVG that also print, and a small script for the timeline and the
moment of the link map. It follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from prestep.sim import __version__, files
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _answers as answers
from prestep.sim.exporters import _variants as of_variants
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import compared, grounds, sections, shares, timeline
from prestep.sim.exporters._html import variants as variants_section
from prestep.sim.markup import Markup, element, markup
from prestep.sim.studies.variants import Variant
from prestep.topologies.show import drawing

SUFFIXES = (".html", ".htm")


Table = dict[str, Any]


def write(
    result: Prediction,
    path: str | Path,
    tornado: Table | None = None,
    known: Table | None = None,
    remedies: Sequence[str] = (),
    variants: Sequence[Variant] = (),
) -> None:
    """Writes the report; the other arguments are those of `render`."""
    files.write_text(path, render(result, tornado, known, remedies, variants))


def render(
    result: Prediction,
    tornado: Table | None = None,
    known: Table | None = None,
    remedies: Sequence[str] = (),
    variants: Sequence[Variant] = (),
) -> str:
    """The report as HTML text.

    Parameters
    ----------
    tornado
        What `prestep.sim.studies.tornado.tornado` returned, for the section on what-ifs.
    known
        Measured runs like this one (`prestep.sim.record.measured_runs.lookup`).
    remedies
        Changes with which a step that does not fit would.
    variants
        The result's step and those it is compared with (`prestep.sim.studies.variants.variants_of`).
    """
    verdict = result.out_of_memory
    return page(
        words.title(result),
        of_variants.verdict(variants) if variants else answers.of_run(result, remedies),
        _sections(result, tornado, known, variants),
        chips=words.chips(result),
        head=sections.tiles(result),
        lost=verdict is not None and not verdict.fits,
    )


def page(
    title: str,
    answer: str,
    parts: Iterable[tuple[str, str, str]],
    *,
    chips: Iterable[str] = (),
    head: str = "",
    lost: bool = False,
) -> str:
    """A whole page as HTML text, for any command's answer.

    Parameters
    ----------
    answer
        The answer in a sentence; red where something is `lost`.
    parts
        (anchor, title, HTML) of the sections, in their order; those without HTML are left out.
    chips
        What was run, in short pieces under the title.
    head
        HTML before the first section.

    Examples
    --------
    >>> text = page("Four GPUs", "All is well.", [("links", "Links", element("p", "none"))], chips=["4 GPUs"])
    >>> "<h1>Four GPUs</h1>" in text and 'href="#links"' in text
    True
    """
    made = [part for part in parts if part[2]]
    links = markup(*(element("a", name, href=f"#{anchor}") for anchor, name, _ in made))
    run = element(
        "p", *(element("span", chip) for chip in chips if chip), class_="chips"
    )
    rests = ""
    if any(anchor == "evidence" for anchor, _, _ in made):
        rests = "Times are simulated; what they rest on is under Evidence."
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be loaded or sent, whatever a name in the scenario says.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{_file('page.css')}{drawing.style()}</style></head>\n"
        f'<body><a class="skip" href="#main">To the figures</a><header>'
        '<button type="button" id="theme" hidden>light or dark</button>'
        f"<h1>{escape(title)}</h1>{run}{element('p', answer, class_='answer lost' if lost else 'answer')}"
        f'<nav aria-label="Sections">{links}</nav></header>\n'
        f'<main id="main">{head}{markup(*(section(*part) for part in made))}</main>\n'
        f"<footer>Predicted by prestep {escape(__version__)}. {rests}</footer>\n"
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def section(name: str, title: str, *parts: str) -> Markup:
    """A section of a page, which links to `name` lead to."""
    head = element("h2", title, id=f"{name}-title")
    return element("section", head, *parts, id=name, aria_labelledby=f"{name}-title")


def _sections(
    result: Prediction,
    tornado: Table | None,
    known: Table | None,
    variants: Sequence[Variant],
) -> Iterator[tuple[str, str, str]]:
    """(anchor, title, HTML) in the order of the page; sections with nothing to say are empty."""
    if variants:
        yield "variants", "Variants", variants_section.answer(variants)
        yield "networks", "Network", variants_section.networks(variants)
    yield "timeline", "Timeline", timeline.timeline(result)
    spent = (
        variants_section.differences(variants) if variants else shares.breakdown(result)
    )
    yield "step", "Where the step goes", spent
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
