"""Sets of programs that others wrote (`kind = "programs"`): each is captured anew, without a GPU, and predicted.

A row is a case of one of the harnesses in `lab/cases/frameworks/harness`: the program is run there alone, as it
was when it was measured, but for fewer repetitions of its step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lab import CASES
from lab.formats.step_times import spread_of
from lab.report.step_cases import Case, Prediction
from lab.report.steps import Report
from lab.report.tolerances import Tolerances
from lab.sets.host_speed import factor_of, of_others
from prestep.sim import progress
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.sim.tools.workers import Workers
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.sets.sets import asked, folder_of
from prestep.workloads.capture.recorder import captured

Given = TypeVar("Given")
Result = TypeVar("Result")

HARNESS = CASES / "frameworks" / "harness"
#: The harness of a case, by the key that names its program.
HARNESSES = {"fw": "fw.py", "prog": "zoo.py", "build": "libraries.py"}
STEPS = {"warmup": 3, "steps": 1}  # run of each case; the third is recorded


def cluster_of(path: Path, clusters: Mapping[str, str]) -> str:
    """The cluster of a file of rows, by the part of its name that set.toml knows.

    Raises
    ------
    InputError
        If no part of the name is known.
    """
    for part, cluster in clusters.items():
        if part in path.name:
            return cluster
    expected = f"a name with one of {', '.join(clusters)}, or --cluster"
    raise InputError.of(str(path), "", "no machine in its name", expected)


@dataclass(frozen=True)
class Run:
    """A row with the cluster that it was measured on, and how slow that machine's host was if set.toml knows.

    Attributes
    ----------
    file
        Of the rows that were measured on one start of the machine.
    own
        Whether the host is that of the file, and not of its cluster's other starts.
    """

    row: Row
    cluster: str
    file: Path
    host: float | None = None
    own: bool = False

    @property
    def overrides(self) -> list[str]:
        cluster = f"cluster.name={self.cluster}"
        if self.host is None:
            return [cluster]
        return [cluster, f"cluster.host_factor={self.host}"]


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1, cluster: str | None = None
) -> Report:
    """Captures and predicts the programs of a set, or other rows in its format.

    Parameters
    ----------
    cluster
        Where they were measured; default: as set.toml says by the names of files.

    Raises
    ------
    InputError
        If there is no such set, a file cannot be read, or PyTorch is not installed.
    """
    table, files, title = asked(name, rows)
    runs = [
        _run_of(row, file, table, cluster) for file in files for row in read_rows(file)
    ]
    said = [run for run in runs if not run.row.error]
    skipped = tuple(run.row for run in runs if run.row.error)
    fitted = set(table.get("fitted", ()))
    tolerances = Tolerances.read(folder_of(name) / "tolerances.toml")
    predictions = _predicted(said, jobs)
    cases = tuple(
        Case(
            run.row,
            prediction,
            run.row.id in fitted,
            spread_of(run.row) > tolerances.noisy_spread,
        )
        for run, prediction in zip(said, predictions, strict=True)
    )
    return Report(name, cases, tolerances, skipped, rows is None, title)


def _run_of(row: Row, file: Path, table: Mapping[str, Any], cluster: str | None) -> Run:
    """A row on the cluster that was asked for, else on that of its file, with its host.

    A file whose machine had another host than the others of its cluster is in set.toml by its own name.
    """
    name = cluster or cluster_of(file, table["clusters"])
    hosts = table.get("hosts", {})
    own = file.stem in hosts
    host = hosts[file.stem] if own else hosts.get(name)
    return Run(row, name, file, host, own)


def _predicted(runs: Sequence[Run], jobs: int) -> list[Prediction]:
    """Every program is captured; then those of a start of a machine say to each other how slow its host was."""
    with tempfile.TemporaryDirectory(prefix="prestep-programs-") as folder:
        work = partial(_recorded, folder=folder)
        recordings = _each(work, list(enumerate(runs)), jobs)
        measured = _measured_hosts(runs, recordings)
        return _each(_predict, list(zip(measured, recordings, strict=True)), jobs)


def _each(
    work: Callable[[Given], Result], given: Sequence[Given], jobs: int
) -> list[Result]:
    if jobs == 1 or len(given) < 2:
        return [work(one) for one in progress.track(given, "programs")]
    with Workers(jobs) as pool:
        made = pool.map(work, given)
        return list(progress.track(made, "programs", len(given)))


@dataclass(frozen=True)
class Recorded:
    """A captured program, or why there is none; with the host factor that its row's steps say."""

    capture: Path
    error: str = ""
    factor: float | None = None


def _recorded(numbered: tuple[int, Run], folder: str) -> Recorded:
    """A program captured; what stops it becomes its error, so that one row does not hide the others."""
    number, run = numbered
    place = Path(folder) / str(number)
    place.mkdir()
    recording = place / f"{run.row.id}.capture"
    try:
        script, suite = _harness(run.row.case, place)
        captured(
            (str(script), str(suite), str(place)),
            recording,
            world=run.row.world,
            cluster=run.cluster,
            quiet=True,
        )
        factor = None if run.own else factor_of(run.row, recording, run.cluster)
    except PrestepError as error:
        return Recorded(recording, _caught(place) or str(error))
    return Recorded(recording, "", factor)


def _caught(place: Path) -> str:
    """The exception that a harness caught: it writes the end of the traceback in place of times."""
    results = place.glob("results.*.rank0.jsonl")
    rows = [json.loads(line) for file in results for line in file.open()]
    tracebacks = [row["error"].strip() for row in rows if row.get("error")]
    if not tracebacks:
        return ""
    return f"the program failed: {tracebacks[-1].splitlines()[-1]}"


def _measured_hosts(runs: Sequence[Run], recordings: Sequence[Recorded]) -> list[Run]:
    """Runs with the hosts that the other rows of their files say, unless set.toml knows that start of the machine."""
    by_file: dict[Path, list[int]] = {}
    for at, run in enumerate(runs):
        by_file.setdefault(run.file, []).append(at)
    measured = list(runs)
    for mine in by_file.values():
        others = of_others([recordings[at].factor for at in mine])
        for at, factor in zip(mine, others, strict=True):
            if factor is not None and not runs[at].own:
                measured[at] = replace(runs[at], host=factor)
    return measured


def _predict(given: tuple[Run, Recorded]) -> Prediction:
    run, recorded = given
    if recorded.error:
        return Prediction(error=recorded.error)
    try:
        step = predict(load_scenario(recorded.capture, run.overrides))
    except PrestepError as error:
        return Prediction(error=str(error))
    memory = {rank: peak.total for rank, peak in step.peak_memory.items()}
    return Prediction(step.step_time, memory, reserved=step.reserved, host=run.host)


def _harness(case: Mapping[str, Any], place: Path) -> tuple[Path, Path]:
    """The script of a case, and the suite that has it alone."""
    key = next((key for key in HARNESSES if key in case), None)
    if key is None:
        expected = f"a case with {' or '.join(HARNESSES)}"
        raise InputError(Mistake(str(case.get("id")), "case", "no program", expected))
    suite = place / "suite.json"
    alone = {k: v for k, v in case.items() if k != "trace"} | STEPS
    suite.write_text(json.dumps([alone]), encoding="utf-8")
    return HARNESS / HARNESSES[key], suite
