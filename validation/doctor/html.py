"""The answer of the doctor as one HTML page: verdict, causes, and every size beside good machines."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.exporters import html
from prestep.sim.markup import element, markup, table
from prestep.sim.units import percent
from prestep.validation.doctor import page
from prestep.validation.doctor.diagnosis import Diagnosis
from prestep.validation.doctor.logs import Run


def render(diagnosis: Diagnosis, run: Run, cluster: str) -> str:
    """The page as HTML text."""
    return html.page(
        f"Is {cluster or 'this cluster'} as fast as good ones?",
        page.verdict(diagnosis),
        _sections(diagnosis),
        chips=[page.extent(run, cluster), f"NCCL {run.version}"],
        lost=diagnosis.abnormal,
    )


def _sections(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    late = [element("li", str(delay)) for delay in diagnosis.delays]
    yield "ranks", "Ranks that hold others up", element("ul", *late) if late else ""
    yield "causes", "Causes, the likeliest first", _causes(diagnosis)
    yield "lines", "What the logs show", _lines(diagnosis)
    items = [element("li", page.part_line(part)) for part in diagnosis.parts]
    yield "parts", "Beside good machines", element("ul", *items) if items else ""
    tables = (
        table(
            page.HEAD,
            [page.size_cells(size) for size in sweep.sizes],
            caption=page.heading(sweep),
        )
        for sweep in diagnosis.sweeps
    )
    yield "sizes", "Every size", markup(*tables)


def _causes(diagnosis: Diagnosis) -> str:
    if not diagnosis.suspects:
        return ""
    listed = [
        (str(place), one)
        for place, group in enumerate(diagnosis.suspects, 1)
        for one in group
    ]
    rows = [
        (place, one.cause.title, one.change.text, percent(one.explained))
        for place, one in listed
    ]
    heads = ("place", "cause", "as it was predicted", "of the difference")
    checks = (
        element("li", element("b", one.cause.title), ": ", *_code(one.cause.check))
        for _, one in listed[:3]
    )
    return markup(table(heads, rows, texts=3), element("ul", *checks))


def _code(text: str) -> Iterator[str]:
    """A text whose commands stand between backticks."""
    for number, part in enumerate(text.split("`")):
        yield element("code", part) if number % 2 else part


def _lines(diagnosis: Diagnosis) -> str:
    shown = {"shows": diagnosis.signs, "rules out": diagnosis.ruled_out}
    rows = [
        (what, name, sign.where, sign.text)
        for what, causes in shown.items()
        for name, signs in causes.items()
        for sign in signs
    ]
    return table(("", "cause", "line", "text"), rows, texts=4) if rows else ""
