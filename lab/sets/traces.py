"""Sets of recorded runs (`kind = "traces"` in set.toml): replayed as they were, and re-targeted to measured ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.replay.outcome import Mode
from prestep.sim.replay.replay import replay_files
from prestep.sim.units import format_duration
from prestep.validation.report.comparison import Comparison
from prestep.validation.report.gate import Check, rows_check
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.sets import folder_of, set_table

MODES: tuple[Mode, ...] = ("recorded", "simulated")
# Clusters of the labels in file names; a label that is not here has no network of its own.
LABELS = {
    "4x1-nic16-spine16": ("h200-leafspine-4x1", ()),
    "2x2-nic16-spine16": ("h200-leafspine-2x2", ()),
    "4x1-nic16-spine8": ("h200-leafspine-4x1", ("spine.bandwidth=0.5x",)),
}


@dataclass(frozen=True)
class Case:
    """One step of one rank, or one re-targeted run; s."""

    name: str
    group: str
    measured: float
    predicted: float
    limit: float | None = None

    @property
    def signed_error(self) -> float:
        return self.predicted / self.measured - 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "group": self.group,
            "measured": self.measured,
            "predicted": self.predicted,
            "signed_error": self.signed_error,
        }


@dataclass(frozen=True)
class TraceReport(Comparison):
    """The comparison of a set; see `prestep.validation.report.interface.Report`."""

    name: str
    title: str
    cases: tuple[Case, ...]
    limits: Mapping[str, Mapping[str, float]]
    skips: Sequence[Skip] = ()
    unit: str = "steps"

    def select(self, group: str | None = None) -> Errors:
        """Errors of a group of cases, or of all."""
        return errors_of(
            [(c.name, c.signed_error) for c in self.cases if group in (None, c.group)]
        )

    @property
    def groups(self) -> dict[str, Errors]:
        return {
            "all": self.select(),
            **{g: self.select(g) for g in sorted({c.group for c in self.cases})},
        }

    @property
    def checks(self) -> tuple[Check, ...]:
        skipped = [skip.name for skip in self.skips]
        limited = [case for case in self.cases if case.limit is not None]
        grouped = [case for case in self.cases if self.limits.get(case.group)]
        judged = len({case.name for case in (*limited, *grouped)})
        left_out = {
            "runs not replayed": len(skipped),
            "steps without a limit": len(self.cases) - judged,
        }
        names = "; ".join(skipped)
        return (
            rows_check(judged, left_out),
            Check("runs not replayed", len(skipped), 0.0, names, share=False),
            *self._groups(),
            *(Check(c.name, abs(c.signed_error), c.limit or 0.0) for c in limited),
        )

    def _groups(self) -> Iterator[Check]:
        for group, limits in self.limits.items():
            errors = self.select(group)
            for figure, limit in limits.items() if errors.n else ():
                value = errors.mape if figure == "mean" else errors.worst
                yield Check(f"{group}: {figure}", value, limit, errors.worst_id)

    @property
    def case_tables(self) -> Sequence[Table]:
        head = ("step", "measured", "predicted", "error")
        tables = []
        for group in sorted({case.group for case in self.cases}):
            rows = [
                (
                    c.name,
                    format_duration(c.measured),
                    format_duration(c.predicted),
                    f"{c.signed_error:+.2%}",
                )
                for c in self.cases
                if c.group == group
            ]
            tables.append(Table(group, head, rows))
        return tables

    @property
    def points(self) -> Sequence[Point]:
        return [
            Point(c.name, c.group, c.measured, c.predicted, fitted=False)
            for c in self.cases
        ]

    def figures(self) -> dict[str, Any]:
        groups = {name: errors.to_json() for name, errors in self.groups.items()}
        return {**self.select().to_json(), "groups": groups}


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> TraceReport:
    """Replays the runs of a set, or those in another folder, and compares with their own steps.

    Raises
    ------
    InputError
        If there is no such set or folder, or no trace in it.
    """
    table, folder = set_table(name), Path(rows) if rows is not None else folder_of(name)
    runs = runs_in(folder)
    cases, skips = list[Case](), list[Skip]()
    for run, files in progress.track(runs.items(), "runs", len(runs)):
        for mode in MODES:
            try:
                cases += _replayed(run, files, mode)
            except PrestepError as error:
                skips.append(Skip(f"{run}, {mode}", str(folder), str(error)))
    for entry in progress.track(table.get("retarget", ()), "runs on other clusters"):
        if entry["run"] in runs:
            cases.append(_retargeted(entry, runs[entry["run"]]))
    title = table["title"] if rows is None else ""
    return TraceReport(name, title, tuple(cases), table["limits"], tuple(skips))


def _retargeted(entry: Mapping[str, Any], files: list[Path]) -> Case:
    """A run replayed on another cluster, or changed, beside the measurement of just that."""
    cluster, changes = entry.get("cluster", ""), tuple(entry.get("set", ()))
    predicted = replay_files(files, None, cluster, changes).step_time
    name, measured, limit = entry["name"], entry["measured"], entry["limit"]
    return Case(name, "retargeted", measured, predicted, limit)


def runs_in(folder: Path) -> dict[str, list[Path]]:
    """Trace files of a folder by run: names up to the rank.

    Raises
    ------
    InputError
        If there is none.
    """
    files = [folder] if folder.is_file() else sorted(folder.glob("*.json*"))
    runs: dict[str, list[Path]] = {}
    for file in files:
        runs.setdefault(
            re.split(r"[._-]?(?:rank|worker)\d+|\.pt\.trace", file.name)[0]
            or file.name,
            [],
        ).append(file)
    if not runs:
        expected = "a folder with traces (.json or .json.gz)"
        hint = "--rows FOLDER names one; prestep's own traces come with a checkout of its repository alone"
        raise InputError.of(str(folder), "", "no trace", expected, hint)
    return runs


def _replayed(run: str, files: list[Path], mode: Mode) -> Iterator[Case]:
    label = run.rpartition(".")[2]
    cluster, changes = LABELS.get(label, ("", ())) if mode == "simulated" else ("", ())
    outcome = replay_files(files, mode, cluster, changes)
    for step in outcome.steps:
        measured, simulated = step.on(outcome.clock)
        yield Case(
            f"{run} rank {step.rank} {step.step}, {mode}", mode, measured, simulated
        )
