"""Sets of logs for `prestep doctor nccl` (`kind = "doctor"` in set.toml): good ones, and ones whose cause is known.

A case is a log. Good logs should be called normal; of the others the right cause should come first, alone or beside
causes that predict the same times at every size. Of public threads the cause should be among the first two named.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab import CASES
from lab.fit import doctor as published
from lab.formats import doctor_threads, leafspine
from lab.formats.leafspine import read_lines
from prestep.sim import progress
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor.diagnosis import Diagnosis, diagnosed
from prestep.validation.doctor.logs import read as read_logs
from prestep.validation.doctor.recognise import recognised
from prestep.validation.doctor.sweep import Situation, series_of
from prestep.validation.formats.collective_rows import IN_PLACE, Row
from prestep.validation.report.comparison import Comparison
from prestep.validation.report.gate import Check, rows_check
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.predict_collective import cluster_of
from prestep.validation.sets.sets import folder_of, set_table

NORMAL = "normal"
GOOD, FAULTY = "good logs", "logs with a cause"
#: Public threads: those that tune the doctor, and those that were kept apart.
THREADS, APART = "public threads", "public threads kept apart"
NAMED = 2
HEAD = ("log", "is", "called", "")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")
SIZES = tuple(2**k for k in range(12, 27, 2))


@dataclass(frozen=True)
class Case:
    """One log: its name, what is true of it, and what it was called: `normal`, or the causes that come first."""

    name: str
    truth: str
    found: tuple[str, ...]
    judges: bool = True
    thread: bool = False
    also: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        if self.thread:
            return APART if self.judges else THREADS
        return FAULTY if self.truth else GOOD

    @property
    def right(self) -> bool:
        """Whether it was called what it is, or what says the same (`also`)."""
        return bool({self.truth or NORMAL, *self.also} & {*self.found})

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"found": list(self.found), "right": self.right}


@dataclass(frozen=True)
class DoctorReport(Comparison):
    """All logs of a set; `limits` on the share of wrong answers by kind."""

    name: str
    title: str
    cases: tuple[Case, ...]
    limits: Mapping[str, float]
    skips: tuple[Skip, ...] = ()
    unit: str = "logs"

    def _errors(self, kind: str, judging: bool = False) -> Errors:
        cases = [
            case
            for case in self.cases
            if case.kind == kind and (case.judges or not judging)
        ]
        return errors_of([(case.name, float(not case.right)) for case in cases])

    @property
    def groups(self) -> dict[str, Errors]:
        """Shares of wrong answers, of logs with a cause by it too."""
        by_cause: dict[str, list[tuple[str, float]]] = {}
        for case in self.cases:
            if case.kind == FAULTY:
                pair = case.name, float(not case.right)
                by_cause.setdefault(case.truth, []).append(pair)
        kinds = (GOOD, FAULTY, THREADS, APART)
        both = {kind: self._errors(kind) for kind in kinds}
        return both | {cause: errors_of(of) for cause, of in by_cause.items()}

    @property
    def checks(self) -> tuple[Check, ...]:
        checks = [rows_check(len(self.cases), {"skipped": len(self.skips)})]
        if (errors := self._errors(GOOD)).n:
            wrong = self._wrong(GOOD)
            checks.append(
                Check(
                    "good logs called abnormal", errors.mape, self.limits[GOOD], wrong
                )
            )
        judging = self._errors(GOOD, judging=True)
        if 0 < judging.n < errors.n:
            title = "good logs called abnormal, of machines that chose no limit"
            checks.append(Check(title, judging.mape, self.limits[GOOD]))
        if (errors := self._errors(FAULTY)).n:
            wrong = self._wrong(FAULTY)
            checks.append(
                Check("another cause first", errors.mape, self.limits[FAULTY], wrong)
            )
        for kind in (THREADS, APART):
            if (errors := self._errors(kind)).n:
                title = f"{kind}: the cause is not among the first two"
                share, limit = errors.mape, self.limits[THREADS]
                checks.append(Check(title, share, limit, self._wrong(kind)))
        return tuple(checks)

    def _wrong(self, kind: str) -> str:
        wrong = [c.name for c in self.cases if c.kind == kind and not c.right]
        return ", ".join(wrong)

    @property
    def case_tables(self) -> Sequence[Table]:
        rows = [
            (
                case.name,
                case.truth or NORMAL,
                " or ".join(case.found) or "no cause",
                "" if case.right else "wrong",
            )
            for case in self.cases
        ]
        right = sum(case.right for case in self.cases)
        return (Table(f"{right} of {len(self.cases)} logs are told right", HEAD, rows),)

    @property
    def points(self) -> Sequence[Point]:
        return tuple(
            Point(case.name, case.kind, 1.0, float(case.right), False)
            for case in self.cases
        )

    def figures(self) -> dict[str, Any]:
        faulty = [case for case in self.cases if case.kind == FAULTY]
        return {
            "n": len(self.cases),
            "groups": {
                k: {"n": e.n, "wrong": e.mape} for k, e in self.groups.items() if e.n
            },
            "first_alone": sum(case.found == (case.truth,) for case in faulty),
        }


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> DoctorReport:
    """Diagnoses the set's logs; or those of published machines (CSV) or one log, as of good machines.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table = set_table(name)
    limits = {
        GOOD: table["alarms"],
        FAULTY: table["wrong"],
        THREADS: table["threads_wrong"],
    }
    if rows is not None:
        cases = tuple(_others(Path(rows)))
        return DoctorReport(name, "", cases, limits)
    cases = tuple(
        case
        for key, made in (("measured", _measured), ("emulated", _emulated))
        for entry in progress.track(table.get(key, []), f"{key} logs")
        for case in made(entry, folder_of(name))
    )
    files = progress.track(table["threads"], "files of threads")
    threads = [one for file in files for one in _threads(folder_of(name) / file)]
    cases = (*cases, *threads)
    return DoctorReport(name, table["title"], cases, limits)


def _threads(path: Path) -> Iterator[Case]:
    """The logs of public threads: with their causes, and without them."""
    for thread in doctor_threads.read(path):
        here = thread.situation()
        found = named(diagnosed(here, thread.lines))
        truth, *also = thread.causes
        yield Case(thread.id, truth, found, thread.apart, True, tuple(also))
        if thread.good:
            here = thread.situation(good=True)
            yield Case(f"{thread.id}/{NORMAL}", "", called(diagnosed(here)))


def named(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The first two causes that are named of a log: by its lines, or as likely; `normal` where there is none."""
    ranked = [suspect for group in diagnosis.suspects for suspect in group]
    shown = [suspect.name for suspect in ranked if suspect.signs]
    likely = [suspect.name for suspect in ranked if not suspect.signs]
    better = ["wrong-choice"] if diagnosis.faster else []
    named = dict.fromkeys([*shown, *diagnosis.signs, *likely, *better])
    return tuple(named)[:NAMED] or (NORMAL,)


def _others(path: Path) -> Iterator[Case]:
    """Logs of published machines, or one log of nccl-tests: good ones, as nothing else is known."""
    if path.suffix.lower() != ".csv":
        run = read_logs([path])
        here = Situation(
            recognised(run), Nccl(version=run.version), series_of(run.rows)
        )
        yield Case(path.name, "", called(diagnosed(here, run.lines)))
        return
    for rows in progress.track(list(published.logs_of(path)), "logs"):
        row = rows[0]
        name = f"{row.machine}/{row.op}/n{row.ranks}/{row.name}"
        found = called(diagnosed(published.situation_of(rows)))
        yield Case(name, "", found, not published.choosing(row.machine))


def called(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What a log is called: normal, or the causes that come first; nothing where no cause predicts it."""
    if not diagnosis.abnormal:
        return (NORMAL,)
    first = diagnosis.suspects[0] if diagnosis.suspects else ()
    return tuple(suspect.name for suspect in first)


def _measured(entry: Mapping[str, Any], folder: Path) -> Iterator[Case]:
    """The measured logs of an entry, by operation and ranks."""
    rows = [
        row
        for file in entry["rows"]
        for row in read_lines(CASES / "h200" / file)[0]
        if not row.skip and re.fullmatch(entry["labels"], row.label)
    ]
    logs: dict[str, list[Row]] = {}
    for row in rows:
        plain = row.op.removesuffix(IN_PLACE)
        log = f"{row.label}/{plain}/n{row.ranks}"
        logs.setdefault(log, []).append(row)
    if entry.get("together"):
        logs[f"{rows[0].label}/all operations"] = rows
    for name, chosen in logs.items():
        yield _case(f"{name}/{entry.get('cause') or NORMAL}", entry, folder, chosen)


def _emulated(entry: Mapping[str, Any], folder: Path) -> Iterator[Case]:
    """Logs that are predicted with the cause in the cluster, with noise."""
    fabric = with_overrides(_machine(entry["cluster"], folder), entry["set"], "set")
    change = ", ".join(f"{key}={value}" for key, value in entry["set"].items())
    every: list[Row] = []
    for op in OPS:
        name = f"emulated {entry['cluster']}, {change}/{op}"
        rows = _with_noise(_asked(op, fabric, entry["cluster"]), fabric, name)
        every += rows
        yield _case(name, entry, folder, rows)
    yield _case(f"emulated {entry['cluster']}, {change}", entry, folder, every)


def _asked(op: str, fabric: Any, cluster: str) -> list[Row]:
    """The sizes of a sweep of an operation among all GPUs."""
    ranks = len(fabric.gpus)
    return [
        Row("nccl-tests", op, ranks, size, 1.0, 1.0, cluster=cluster) for size in SIZES
    ]


def _with_noise(rows: Sequence[Row], fabric: Any, name: str) -> list[Row]:
    """The rows with their predicted times, off by the model's spread: half of it the same for all sizes."""
    draw = random.Random(zlib.crc32(name.encode()))
    sizes = Situation(fabric, Nccl(), (tuple(rows),)).sizes
    common, made = draw.gauss(0.0, 1.0), []
    for row, size in zip(rows, sizes, strict=True):
        off = (common + draw.gauss(0.0, 1.0)) / 2**0.5 * size.expected.spread
        made.append(replace(row, time=size.expected.time * math.exp(off)))
    return made


def _case(
    name: str, entry: Mapping[str, Any], folder: Path, rows: Sequence[Row]
) -> Case:
    """A log held against the machine as it should have been."""
    cluster = entry.get("cluster")
    fabric = _machine(cluster, folder) if cluster else cluster_of(rows[0])
    plain = Nccl(version=rows[0].wanted.version, nvls=rows[0].wanted.nvls)
    here = Situation(fabric, plain, series_of(rows))
    return Case(name, entry.get("cause", ""), called(diagnosed(here)))


@lru_cache(maxsize=16)
def _machine(name: str, folder: Path) -> Any:
    """An emulated cluster by its label, a bundled one, or a file of the set."""
    if leafspine.LABEL.fullmatch(name):
        return load_cluster(leafspine.network_of(name))
    return load_cluster(folder / name if name.endswith(".toml") else name)
