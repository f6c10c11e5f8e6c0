"""Writes a result: one file per format, found by its name.

An exporter is a module with ``write(result, path)`` and ``SUFFIXES``, the file endings it answers to ("/" is a
folder). ``write`` may return what a reader should know of the file. Those for people also have
``render(result) -> str``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.plugins import load_function, outlines


def write(
    result: Prediction, path: str | Path, name: str | None = None, **options: Any
) -> Path:
    """Write `result` with the exporter `name`, or the one whose suffix `path` has; returns the path.

    `options` are the exporter's own.

    Raises
    ------
    InputError
        If no exporter has that name or suffix, or the file cannot be written.
    """
    export(result, path, name, **options)
    return Path(path)


def export(
    result: Prediction, path: str | Path, name: str | None = None, **options: Any
) -> str:
    """Write `result` as `write` does; returns a line about what was written."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        exporter = load_function(__name__, name or name_for(path), "write")
        said = exporter(result, target, **options)
    except OSError as error:
        raise InputError.of(
            str(path),
            "",
            error.strerror or str(error),
            "a path that can be written",
        ) from error
    return f"wrote {target}; {said}" if said else f"wrote {target}"


def name_for(path: str | Path) -> str:
    """Exporter for the ending of `path`, the longest that matches; a folder, or no ending, is "/"."""
    suffixes = {
        suffix: name
        for name, outline in outlines(__name__).items()
        for suffix in outline.constants.get("SUFFIXES", ())
    }
    text = str(path)
    ending = (
        "/"
        if text.endswith("/") or Path(path).is_dir() or not Path(path).suffix
        else text
    )
    matching = [suffix for suffix in suffixes if ending.endswith(suffix)]
    if not matching:
        raise InputError.of(
            text, "", "an unknown ending", f"one of {', '.join(sorted(suffixes))}"
        )
    return suffixes[max(matching, key=len)]
