"""Reports whose cases some constant may have been taken from: their tables, fitted cases apart, and their points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prestep.validation.report.comparison import Comparison
from prestep.validation.report.interface import Cells, Point, Table


class Judged(Protocol):
    """A case as a row of its table and as a point of the picture."""

    @property
    def cells(self) -> Cells: ...
    @property
    def point(self) -> Point: ...


class Judging(Protocol):
    """What a report has of its own: the head, and titles of the judged cases and of the fitted ones."""

    @property
    def head(self) -> Cells: ...
    @property
    def titles(self) -> tuple[str, str]: ...
    @property
    def cases(self) -> Sequence[Judged]: ...


class JudgedComparison(Comparison):
    """Base of these reports."""

    @property
    def case_tables(self: Judging) -> Sequence[Table]:
        rows: dict[bool, list[Cells]] = {False: [], True: []}
        for case in self.cases:
            rows[case.point.fitted].append(case.cells)
        return [
            Table(title, self.head, rows[fitted])
            for title, fitted in zip(self.titles, rows, strict=True)
        ]

    @property
    def points(self: Judging) -> Sequence[Point]:
        return [case.point for case in self.cases]
