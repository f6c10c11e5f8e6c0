"""A tornado of what-ifs as a picture: .svg, .png, or a page with the drawing in it (.html)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prestep.sim import files, pictures
from prestep.sim.errors import InputError
from prestep.sim.studies.whatif_page import named
from prestep.sim.units import format_duration

Table = dict[str, Any]
SHOWN = 24  # elements
PAGE = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>What matters most</title>\n%s</html>\n'
COLOURS = ("#dc2626", "#2563eb", "#d97706", "#059669")


def plot(table: Table, path: Path) -> None:
    """Draws the tornado.

    Raises
    ------
    InputError
        For another kind of file.
    """
    check_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = _figure(table)
    if path.suffix == ".html":
        svg = pictures.drawn(figure, "svg").decode()
        files.write_text(path, PAGE % svg[svg.index("<svg") :])
    else:
        pictures.save(figure, path)


def check_suffix(path: Path) -> None:
    """Raises InputError for a file that `plot` cannot write."""
    if path.suffix not in (".svg", ".png", ".html"):
        raise InputError.of(
            "command line",
            "--plot",
            f'"{path}"',
            "a file that ends in .svg, .png or .html",
        )


def _series(table: Table) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """Names of the elements, the largest effect last, and the differences in ms for every factor."""
    rows = list(reversed(table["elements"][:SHOWN]))
    series = [
        (f"{factor:g}x", [row["changes"][at]["difference"] * 1e3 for row in rows])
        for at, factor in enumerate(table["factors"])
    ]
    return [named(row) for row in rows], series


def _figure(table: Table) -> Figure:
    names, series = _series(table)
    figure = pictures.figure(8.5, 1.4 + 0.34 * len(names), layout="constrained")
    axes = figure.add_subplot()
    for number, (factor, values) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(names, values, height=0.62, color=colour, alpha=0.85, label=factor)
    base = format_duration(table["step_time"])
    axes.set_xlabel(f"change of the step time in ms (base: {base})")
    _style(axes)
    return figure


def _style(axes: Axes) -> None:
    axes.axvline(0, color="#0f172a", lw=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e2e8f0", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
