"""Sets of programs that others wrote (`kind = "programs"`): each is captured anew, without a GPU, and predicted.

A row is a case of one of the harnesses in `validation/cases/frameworks/harness`: the program is run there alone, as it
was when it was measured, but for fewer repetitions of its step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sim import progress
from sim.errors import InputError, Mistake, PrestepError
from sim.predict import predict
from sim.spec.load import load_scenario
from sim.tools.orphans import end_with_parent
from sim.tools.program_capture import captured
from validation.formats.rows import Row, read_rows
from validation.report.gate import Tolerances
from validation.report.step_cases import Case, Prediction
from validation.report.steps import Report
from validation.sets.sets import CASES, asked

HARNESS = CASES / "frameworks" / "harness"
#: The harness of a case, by the key that names its program.
HARNESSES = {"fw": "fw.py", "prog": "zoo.py"}
STEPS = {"warmup": 3, "steps": 1}  # run of each case; the third is recorded


@dataclass(frozen=True)
class Run:
    """A row with the cluster that it was measured on, and how slow that machine's host was if set.toml knows."""

    row: Row
    cluster: str
    host: float | None = None

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
    tolerances = Tolerances.read(CASES / name / "tolerances.toml")
    predictions = _predicted(said, jobs)
    cases = tuple(
        Case(
            run.row,
            prediction,
            run.row.id in fitted,
            run.row.spread > tolerances.noisy_spread,
        )
        for run, prediction in zip(said, predictions, strict=True)
    )
    return Report(name, cases, tolerances, skipped, rows is None, title)


def _run_of(row: Row, file: Path, table: Mapping[str, Any], cluster: str | None) -> Run:
    """A row on the cluster that was asked for, else on that of its file, with its host.

    A file whose machine had another host than the others of its cluster is in set.toml by its own name.
    """
    name = cluster or _cluster_of(file, table["clusters"])
    hosts = table.get("hosts", {})
    return Run(row, name, hosts.get(file.stem, hosts.get(name)))


def _cluster_of(file: Path, clusters: Mapping[str, str]) -> str:
    """The cluster of a file of rows, by the part of its name that set.toml knows."""
    for part, cluster in clusters.items():
        if part in file.name:
            return cluster
    expected = f"a name with one of {', '.join(clusters)}, or --cluster"
    raise InputError(Mistake(str(file), "", "no machine in its name", expected))


def _predicted(runs: Sequence[Run], jobs: int) -> list[Prediction]:
    with tempfile.TemporaryDirectory(prefix="prestep-programs-") as folder:
        work = partial(_predict, folder=folder)
        numbered = list(enumerate(runs))
        if jobs == 1 or len(runs) < 2:
            return [work(one) for one in progress.track(numbered, "programs")]
        with ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent) as pool:
            made = pool.map(work, numbered)
            return list(progress.track(made, "programs", len(runs)))


def _predict(numbered: tuple[int, Run], folder: str) -> Prediction:
    """The prediction of one program; what stops it becomes its error, so that one row does not hide the others."""
    number, run = numbered
    place = Path(folder) / str(number)
    place.mkdir()
    try:
        script, suite = _harness(run.row.case, place)
        recording = place / f"{run.row.id}.capture"
        captured(
            (str(script), str(suite), str(place)),
            recording,
            world=run.row.world,
            cluster=run.cluster,
            quiet=True,
        )
        scenario = load_scenario(recording, run.overrides)
        step = predict(scenario)
    except PrestepError as error:
        return Prediction(error=str(error))
    memory = {rank: peak.total for rank, peak in step.peak_memory.items()}
    return Prediction(step.step_time, memory, reserved=step.reserved)


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
