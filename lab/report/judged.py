"""Tables of cases, those that constants were taken from apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from prestep.validation.report.interface import Cells, Table


class Judged(Protocol):
    """A case that some constant may have been taken from."""

    @property
    def fitted(self) -> bool: ...


Row = TypeVar("Row", bound=Judged)


def tables_of(
    cases: Iterable[Row],
    head: Cells,
    cells: Callable[[Row], Cells],
    judged: str,
    fitted: str,
) -> tuple[Table, Table]:
    """Cases that no constant was taken from, and the others, each under its title."""
    rows: dict[bool, list[Cells]] = {False: [], True: []}
    for case in cases:
        rows[case.fitted].append(cells(case))
    return Table(judged, head, rows[False]), Table(fitted, head, rows[True])
