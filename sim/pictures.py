"""Pictures by matplotlib: equal input makes equal bytes, and names are names, not formulas."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from prestep.sim import files

#: What a file says of its making, by format: no dates and versions.
METADATA = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}


def figure(wide: float, high: float, **options: Any) -> Figure:
    """A figure of that size in inches, without a window."""
    made = Figure(figsize=(wide, high), facecolor="white", **options)
    FigureCanvasAgg(made)
    return made


def drawn(figure: Figure, kind: str) -> bytes:
    """A figure as a file: "svg", "png" or "pdf". Text stays text, and `$...$` of a name is no mathematics."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "prestep", "svg.fonttype": "none"}):
        figure.savefig(file, dpi=130, format=kind, metadata=METADATA.get(kind))
    return file.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that the suffix says; without one, PNG.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    files.write_bytes(path, drawn(figure, path.suffix.lstrip(".") or "png"))
