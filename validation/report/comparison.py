"""What the reports of all kinds of sets share: the verdict, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prestep.sim.analysis.json_text import finite
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
        report = {
            "set": self.name,
            "title": self.title,
            "passed": self.passed,
            **self.figures(),
            "checks": [check.to_json() for check in self.checks],
            "cases": [case.to_json() for case in self.cases],
            "skipped": [skip.to_json() for skip in self.skips],
        }
        return dict(finite(report))
