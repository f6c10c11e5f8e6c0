"""The tables of docs/gpus.md: what kernels of each GPU rest on.

    python -m lab.report.gpus docs/gpus.md

writes them between the page's markers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.formats.packaged import libraries
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import names
from prestep.sim.costs.library_families import FAMILIES
from prestep.sim.tools.support import (
    FORMATS,
    TYPICAL,
    formats_of,
    matrix,
    table_errors,
)
from prestep.sim.units import percent

BEGIN, END = "<!-- gpus: begin -->", "<!-- gpus: end -->"


def page() -> str:
    """Grades in a step, what steps take from libraries, and kernels of libraries by format with their errors."""
    return f"{_steps()}\n\n{in_steps()}\n\n{_libraries()}"


def _steps() -> str:
    rows = matrix()
    columns = [name for family in TYPICAL for name, _ in formats_of(family, FORMATS)]
    lines = [_line(["GPU", *columns]), _line(["---"] * (len(columns) + 1))]
    for name, row in rows.items():
        lines.append(_line([name, *(row.get(column, "") for column in columns)]))
    return "\n".join(lines)


def _libraries() -> str:
    """Rows of packaged tables and their errors at shapes that they lack, by GPU, family and format."""
    counts: dict[tuple[str, str], int] = {}
    for family in FAMILIES:
        for library, frame in libraries(family).items():
            key = library.gpu, f"{family.name} {library.dtype}"
            counts[key] = counts.get(key, 0) + len(frame)
    errors = table_errors()
    gpus, columns = ([*dict.fromkeys(part)] for part in zip(*counts, strict=True))
    lines = [_line(["GPU", *columns]), _line(["---"] * (len(columns) + 1))]
    for gpu in sorted(gpus):
        keys = [(gpu, column) for column in columns]
        lines.append(_line([gpu, *(_cell(counts.get(k), errors.get(k)) for k in keys)]))
    return "\n".join(lines)


def _cell(rows: int | None, errors: tuple[float, float] | None) -> str:
    """ "10318: 3.9 %, 12.7 %"."""
    if rows is None:
        return ""
    if errors is None:
        return str(rows)
    half, most = errors
    return f"{rows}: {percent(half)}, {percent(most)}"


def in_steps() -> str:
    """What steps take from libraries: GPU, family and format, stack, error on kernels of measured steps."""
    head = ["GPU", "family", "library", "what is taken off", "error"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in names():
        for key, stack in load_gpu(name).facts.libraries.items():
            family, _, dtype = key.partition("_")
            off = f"{stack.call * 1e6:.1f} us, {stack.moved:.1f} bytes an element"
            cells = [name, f"{family} {dtype}", stack.source, off, percent(stack.error)]
            lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


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
