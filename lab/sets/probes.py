"""Sets of questions without measurements (`kind = "probes"` in set.toml): answers to compare with those of a base."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.sets.answer import Answer
from lab.sets.questions import answers
from prestep.sim.errors import InputError, Mistake
from prestep.validation.report.gate import Check
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors
from prestep.validation.sets.sets import set_table

HEAD = ("question", "about", "answer")


@dataclass(frozen=True)
class ProbeReport:
    """All answers; nothing is measured, so there are neither errors nor points (see
    `prestep.validation.report.interface.Report`)."""

    name: str
    title: str
    answers: tuple[Answer, ...]
    unit: str = "answers"

    @property
    def checks(self) -> tuple[Check, ...]:
        """That every question has an answer that is a number, and a name of its own."""
        bad = [
            answer.name for answer in self.answers if not math.isfinite(answer.value)
        ]
        again = [
            name
            for name, count in Counter(answer.name for answer in self.answers).items()
            if count > 1
        ]
        return (
            Check(
                "no answers", float(not self.answers), 0.0, share=False, excusable=False
            ),
            Check(
                "answers that are no number",
                float(len(bad)),
                0.0,
                ", ".join(bad[:8]),
                share=False,
            ),
            Check(
                "questions asked twice",
                float(len(again)),
                0.0,
                ", ".join(again[:8]),
                share=False,
            ),
        )

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def groups(self) -> Mapping[str, Errors]:
        return {}

    @property
    def case_tables(self) -> Sequence[Table]:
        counted = Counter(answer.slice for answer in self.answers)
        rows = [(name, str(count)) for name, count in counted.items()]
        return (
            Table(
                "Questions that nobody has measured (`--json` has the answers)",
                ("about", "n"),
                rows,
            ),
        )

    @property
    def points(self) -> Sequence[Point]:
        return ()

    @property
    def skips(self) -> Sequence[Skip]:
        return ()

    def to_json(self) -> dict[str, Any]:
        """`cases` have `predicted` and no `measured`; `--compare` counts by how much they moved."""
        return {
            "set": self.name,
            "title": self.title,
            "passed": self.passed,
            "n": len(self.answers),
            "checks": [check.to_json() for check in self.checks],
            "cases": [
                {
                    "id": a.name,
                    "slice": a.slice,
                    "predicted": a.value if math.isfinite(a.value) else None,
                    "measured": None,
                }
                for a in self.answers
            ],
        }


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> ProbeReport:
    """Asks everything; `jobs` is not used.

    Raises
    ------
    InputError
        If rows are given: there is nothing to read.
    """
    if rows is not None:
        raise InputError(
            Mistake(
                "command line",
                "--rows",
                str(rows),
                f"nothing: {name} has no measurements",
            )
        )
    return ProbeReport(name, set_table(name)["title"], tuple(answers()))


def main() -> None:
    """`python -m lab.sets.probes ABOUT...`: the report of some of the questions, as JSON."""
    title = set_table("probes")["title"]
    report = ProbeReport("probes", title, tuple(answers(sys.argv[1:])))
    print(json.dumps(report.to_json()))


if __name__ == "__main__":
    main()
