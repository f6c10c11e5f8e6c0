"""The answer of the doctor as one HTML page: verdict, causes, and every size beside good machines."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim import sheets
from prestep.sim.tables import Sheet
from prestep.sim.units import percent
from prestep.validation.doctor import page
from prestep.validation.doctor.diagnosis import Diagnosis
from prestep.validation.doctor.logs import Run


def render(diagnosis: Diagnosis, run: Run, cluster: str) -> str:
    """The page as HTML text."""
    title = f"Is {cluster or 'this cluster'} as fast as good ones?"
    filled = [one for one in _sheets(diagnosis) if one.rows or one.notes]
    chips = [page.extent(run, cluster), f"NCCL {run.version}"]
    answer, lost = page.verdict(diagnosis), diagnosis.abnormal
    return sheets.as_html(title, answer, filled, chips, lost=lost)


def _sheets(diagnosis: Diagnosis) -> Iterator[Sheet]:
    delays = [str(delay) for delay in diagnosis.delays]
    yield Sheet("Ranks that hold others up", (), (), notes=delays)
    yield _causes(diagnosis)
    shown = {"shows": diagnosis.signs, "rules out": diagnosis.ruled_out}
    lines = [
        (what, name, sign.where, sign.text)
        for what, causes in shown.items()
        for name, signs in causes.items()
        for sign in signs
    ]
    yield Sheet("What the logs show", ("", "cause", "line", "text"), lines, texts=4)
    parts = [page.part_line(part) for part in diagnosis.parts]
    yield Sheet("Beside good machines", (), (), notes=parts)
    for sweep in diagnosis.sweeps:
        sizes = [page.size_cells(size) for size in sweep.sizes]
        yield Sheet(page.heading(sweep), page.HEAD, sizes)


def _causes(diagnosis: Diagnosis) -> Sheet:
    """Suspects, and what to look at for the first of them."""
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
    checks = [f"{one.cause.title}: {one.cause.check}" for _, one in listed[:3]]
    return Sheet("Causes, the likeliest first", heads, rows, texts=3, notes=checks)
