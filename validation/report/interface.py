"""What every kind of comparison offers to the writers: terminal, Markdown, JSON, JUnit and picture know no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prestep.validation.report.gate import Check
from prestep.validation.report.summary import Errors

# Okabe and Ito's colours (told apart by the colour-blind too), their yellow darkened for white paper.
PALETTE = (
    "#000000",
    "#0072B2",
    "#56B4E9",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#B8860B",
    "#7F7F7F",
)


Cells = Sequence[str]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Table:
    """Cells under a head; the title says what the rows have in common."""

    title: str
    head: Cells
    rows: Sequence[Cells]


@dataclass(frozen=True)
class Skip:
    """A row that could not be compared, with the reason."""

    name: str
    where: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"id": self.name, "where": self.where, "error": self.reason}


@dataclass(frozen=True)
class Point:
    """One compared case, s. `error`: why there is no prediction. `faint`: not part of the figures.

    `interval`: between which times the measured one should lie, with the probability
    `prestep.sim.analysis.uncertainty.NOMINAL`.
    """

    name: str
    group: str
    measured: float
    predicted: float
    fitted: bool
    faint: bool = False
    error: str = ""
    interval: Interval | None = None


class Report(Protocol):
    """A finished comparison of one set.

    Attributes
    ----------
    name : str
        The set.
    unit : str
        What one case is, in the plural ("steps").
    checks : tuple of Check
        Every figure against its limit.
    passed : bool
        Whether all checks did.
    groups : mapping
        Errors by the name of a group of cases.
    case_tables : sequence of Table
        All cases, those that constants were taken from apart.
    points : sequence of Point
        All cases, for JUnit and pictures.
    skips : sequence of Skip
        Rows that were not compared.
    """

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def passed(self) -> bool: ...
    @property
    def groups(self) -> Mapping[str, Errors]: ...
    @property
    def case_tables(self) -> Sequence[Table]: ...
    @property
    def points(self) -> Sequence[Point]: ...
    @property
    def skips(self) -> Sequence[Skip]: ...

    def to_json(self) -> dict[str, Any]:
        """Seconds and bytes; errors as shares."""
        ...
