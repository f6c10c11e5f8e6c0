"""A row of the table of spans."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Row:
    """A row of the table of spans; see `schema`."""

    name: str
    operator: str
    stream: int
    start: float
    end: float
    bytes: float
    collective: str
    group: str
    peers: str
    sequence: int
    correlation: int
    target: int
    shape: str
    dtype: str
