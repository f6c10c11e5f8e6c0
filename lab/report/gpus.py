"""The tables of docs/gpus.md: what kernels of each GPU rest on.

    python -m lab.report.gpus docs/gpus.md

writes them between the page's markers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.formats.library_families import FAMILIES
from lab.formats.packaged import libraries
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import names
from prestep.sim.tools.support import (
    FORMATS,
    TYPICAL,
    formats_of,
    matrix,
    table_errors,
)
from prestep.sim.units import percent

GRADES = ("measured", "fitted", "datasheet")
BEGIN, END = "<!-- gpus: begin -->", "<!-- gpus: end -->"


def page() -> str:
    """Grades in a step, what steps take from libraries, and kernels of libraries by format with their errors."""
    return f"{_steps()}\n\n{in_steps()}\n\n{_libraries()}"


def _steps() -> str:
    """What is better than a guess on each GPU, and the GPUs on which nothing is."""
    columns = [name for family in TYPICAL for name, _ in formats_of(family, FORMATS)]
    lines, guessed = [_line(["GPU", *GRADES]), _rule(len(GRADES) + 1)], []
    for name, row in matrix().items():
        cells = [
            "; ".join(column for column in columns if row.get(column) == grade)
            for grade in GRADES
        ]
        if any(cells):
            lines.append(_line([name, *cells]))
        else:
            guessed.append(name)
    rest = f"All else that they compute is a guess, and everything on {', '.join(guessed)}."
    return "\n".join([*lines, "", rest])


def _libraries() -> str:
    """Median errors of packaged tables at shapes that they lack, by GPU, family and format."""
    counts: dict[tuple[str, str], int] = {}
    for family in FAMILIES:
        for library, frame in libraries(family).items():
            key = library.gpu, f"{family.name} {library.dtype}"
            counts[key] = counts.get(key, 0) + len(frame)
    errors = table_errors()
    gpus, columns = ([*dict.fromkeys(part)] for part in zip(*counts, strict=True))
    lines = [_line(["GPU", *columns]), _rule(len(columns) + 1)]
    for gpu in sorted(gpus):
        keys = [(gpu, column) for column in columns]
        lines.append(_line([gpu, *(_cell(counts.get(k), errors.get(k)) for k in keys)]))
    return "\n".join(lines)


def _cell(rows: int | None, errors: tuple[float, float] | None) -> str:
    """The median error; rows that were not judged are marked."""
    if rows is None:
        return ""
    return "not judged" if errors is None else percent(errors[0])


def in_steps() -> str:
    """What steps take from libraries: GPU, family and format, stack, error on kernels of measured steps."""
    head = ["GPU", "family", "library", "what is taken off", "error"]
    lines = [_line(head), _rule(len(head))]
    for name in names():
        for key, stack in load_gpu(name).facts.libraries.items():
            family, _, dtype = key.partition("_")
            off = f"{stack.call * 1e6:.1f} us, {stack.moved:.1f} bytes an element"
            cells = [name, f"{family} {dtype}", stack.source, off, percent(stack.error)]
            lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    """A row; GitHub and MyST fill up one whose last cells are empty."""
    return " | ".join(cells).rstrip(" |")


def _rule(columns: int) -> str:
    return "|".join(["---"] * columns)


def written(text: str) -> str:
    """A page with the tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{page()}\n{END}{after}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args().page
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
