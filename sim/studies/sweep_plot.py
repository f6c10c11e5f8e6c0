"""A picture of a sweep: a column of its results over a key of its grid."""

from __future__ import annotations

import io
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.workloads.operation import words

COST = "cost_per_token"
NEEDED = ("error", "step_time", "tokens_per_second_per_gpu")
#: Endings of pictures, and what such a file says of its making: no dates and versions, so that equal input makes equal
#: bytes.
SUFFIXES = {
    ".svg": {"Date": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
}
#: What an axis says of a column, and the factor from the column to what is drawn.
LABELS = {
    "step_time": ("step time (s)", 1.0),
    "mfu": ("MFU (%)", 100.0),
    COST: ("cost of a million tokens", 1e6),
    "tokens_per_second_per_gpu": ("tokens/s per GPU", 1.0),
    "tflops_per_gpu": ("model TFLOP/s per GPU", 1.0),
    "peak_memory": ("memory of the fullest rank (GiB)", 2.0**-30),
    "grounded": ("measured or fitted (%)", 100.0),
}
SECONDS = words("compute exposed_communication bubble straggler io host idle")


def plot(
    folder: Path, x: str, y: str, price: float | None, output: Path | None
) -> Path:
    """Draws column `y` of a sweep's folder over key `x` of its grid; returns the file.

    Raises
    ------
    InputError
        If the folder has no results, there is no such key or column, or no run has it.
    """
    path = folder / "results.parquet" if folder.is_dir() else folder
    if not path.is_file():
        expected = "a folder of `prestep sweep`"
        raise InputError.of(str(folder), "", "no results.parquet", expected)
    picture = output or folder / f"{y}.svg"
    runs = _read(path)
    if price is not None:
        # the currency is the price's; there are 3600 seconds in its hour
        runs[COST] = price / 3600 / runs["tokens_per_second_per_gpu"]
    mistakes = [*_unknown(runs, x, y), *_misused(y, price, picture)]
    InputError.check(mistakes)
    runs = runs[(runs["error"] == "") & runs[y].notna()]
    if runs.empty:
        raise InputError.of(str(path), y, "no run that has it", "at least one")
    picture.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(picture, _drawn(_figure(runs, x, y), picture.suffix))
    return picture


def _read(path: Path) -> pd.DataFrame:
    """A sweep's results.

    Raises
    ------
    InputError
        If they are none, or lack columns that every sweep has.
    """
    expected = "results of `prestep sweep`"
    try:
        with path.open("rb") as file:  # Arrow takes names in UTF-8 alone
            runs = pd.read_parquet(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError.of(str(path), "", str(error)[:200], expected) from None
    lists = [name for name in map(str, runs.columns) if _has_lists(runs[name])]
    if lists:
        found = f"lists in {', '.join(lists)}"
        raise InputError.of(str(path), "", found, expected)
    missing = [name for name in NEEDED if name not in runs.columns]
    if missing:
        found = f"no column {', '.join(missing)}"
        raise InputError.of(str(path), "", found, expected)
    return runs


def _has_lists(column: pd.Series) -> bool:
    """Whether a column has values that are no single ones, which a sweep never writes."""
    return column.dtype == object and bool(
        column.map(lambda value: not isinstance(value, Hashable)).any()
    )


def _keys(runs: pd.DataFrame) -> list[str]:
    """The keys of the sweep's grid."""
    names = map(str, runs.columns)
    return [name.removeprefix("set.") for name in names if name.startswith("set.")]


def _unknown(runs: pd.DataFrame, x: str, y: str) -> Iterator[Mistake]:
    keys = _keys(runs)
    columns = [*map(str, runs.select_dtypes("number").columns), COST]
    if x not in keys:
        yield unknown("command line", "--x", x, keys)
    if y not in columns:
        yield unknown("command line", "--y", y, dict.fromkeys(columns))


def _misused(y: str, price: float | None, picture: Path) -> Iterator[Mistake]:
    place = "command line"
    if y == COST and price is None:
        expected = "--price of a GPU for an hour beside it"
        yield Mistake(place, "--y", f"{COST} alone", expected)
    if y != COST and price is not None:
        yield Mistake(place, "--price", f"--y {y}", f"--y {COST}")
    if picture.suffix not in SUFFIXES:
        expected = "a file that ends in .svg, .png or .pdf"
        yield Mistake(place, "-o", str(picture), expected)


def _figure(runs: pd.DataFrame, x: str, y: str) -> Figure:
    """A line for every value of the keys that vary beside `x`."""
    others = [
        key for key in _keys(runs) if key != x and runs[f"set.{key}"].nunique() > 1
    ]
    figure = Figure(figsize=(7.5, 4.5), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    values = list(dict.fromkeys(runs[f"set.{x}"]))
    ticks = {value: tick for tick, value in enumerate(values)}
    label, factor = _label(y)
    for name, line in _lines(runs, others):
        places = [ticks[value] for value in line[f"set.{x}"]]
        axes.plot(places, factor * line[y], marker="o", label=name)
    axes.set_xticks(range(len(values)), values)
    room = 1.08 * factor * max(0.0, float(runs[y].max())) or None
    axes.set(xlabel=x, ylabel=label, ylim=(0, room))
    axes.set_title(_title(runs), fontsize=10)
    _plain(axes)
    if others:
        axes.legend(fontsize=8)
    return figure


def _title(runs: pd.DataFrame) -> str:
    """What was run, as far as all runs have it in common."""
    shared = (
        str(runs[name].iloc[0])
        for name in ("model", "cluster", "layout")
        if name in runs and runs[name].nunique() == 1
    )
    return ", ".join(shared)


def _drawn(figure: Figure, suffix: str) -> bytes:
    """The file of a figure. Text stays text, and `$...$` of a name is no mathematics."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    kind, file = suffix.lstrip("."), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "prestep", "svg.fonttype": "none"}):
        figure.savefig(file, dpi=130, format=kind, metadata=SUFFIXES[suffix])
    return file.getvalue()


def _label(y: str) -> tuple[str, float]:
    words = y.replace("_", " ")
    return LABELS.get(y, (f"{words} (s)" if y in SECONDS else words, 1.0))


def _lines(
    runs: pd.DataFrame, others: Sequence[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and runs of each line."""
    if not others:
        yield "", runs
        return
    groups: Any = runs.groupby([f"set.{key}" for key in others], sort=False)
    for values, line in groups:
        pairs = zip(others, values, strict=True)
        yield ", ".join(f"{key} {value}" for key, value in pairs), line


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
