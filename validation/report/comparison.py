"""What the reports of all kinds of sets share: the verdict, and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prestep.validation.report.interface import Report


class Case(Protocol):
    """A case of any kind of set."""

    def to_json(self) -> dict[str, Any]: ...


class Parts(Report, Protocol):
    """What a kind of report has of its own: its title, its cases, and its figures by name for JSON."""

    @property
    def title(self) -> str: ...
    @property
    def cases(self) -> Sequence[Case]: ...

    def figures(self) -> Mapping[str, Any]: ...


class Comparison:
    """Base of the reports; with their own part they are a `prestep.validation.report.interface.Report`."""

    @property
    def passed(self: Report) -> bool:
        """Whether all checks did."""
        return all(check.passed for check in self.checks)

    def to_json(self: Parts) -> dict[str, Any]:
        """Seconds and bytes; errors as shares."""
        return {
            "set": self.name,
            "title": self.title,
            "passed": self.passed,
            **self.figures(),
            "checks": [check.to_json() for check in self.checks],
            "cases": [case.to_json() for case in self.cases],
            "skipped": [skip.to_json() for skip in self.skips],
        }


def finite(*values: float) -> list[float | None]:
    """Values for JSON, which has no nan: None for each of them where the first is not a number."""
    return [value if math.isfinite(values[0]) else None for value in values]
