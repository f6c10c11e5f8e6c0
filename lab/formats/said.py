"""A row of a table that others published, as a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """What a row says, and what had to be assumed.

    Attributes
    ----------
    id, part
        The row's name, and that of the slice of the report that it belongs to.
    tables
        Sections of the scenario.
    measured
        Seconds of the step.
    assumed
        What the row leaves open and somebody chose, in words.
    """

    id: str
    part: str
    tables: Mapping[str, Any]
    measured: float
    assumed: str
