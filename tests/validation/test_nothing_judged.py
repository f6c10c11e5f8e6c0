"""A set that judged no row fails, whatever kind it is of, in every form that a report is written in."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

import lab
from lab import CASES
from lab.report.collectives import CollectiveReport, Limits
from lab.report.figures_of_rows import FiguresReport
from lab.report.published import Case as PublishedCase
from lab.report.published import PublishedReport
from lab.sets.changes import ChangesReport
from lab.sets.choices import ChoiceReport
from lab.sets.doctor import DoctorReport
from lab.sets.kernels import KernelReport
from lab.sets.probes import ProbeReport
from lab.sets.rl import RlReport
from lab.sets.step_sets import load_set
from lab.sets.steps import Report
from lab.sets.traces import TraceReport
from prestep import cli
from prestep.validation.report.gate import Check
from prestep.validation.sets.own import OwnReport
from prestep.validation.sets.sets import folder_of, set_names, set_table
from prestep.validation.sets.sources import kinds
from tests.sample import together

EMPTY = {
    "changes": lambda: ChangesReport("leafspine", (), load_set("h200").tolerances),
    "steps": lambda: Report("h200", (), load_set("h200").tolerances),
    "collectives": lambda: CollectiveReport("collectives", "", (), Limits({})),
    "published_collectives": lambda: CollectiveReport("p", "", (), Limits({})),
    "choices": lambda: ChoiceReport("nccl-choice", "", ()),
    "traces": lambda: TraceReport("traces", "", (), {}),
    "published": lambda: PublishedReport("published", "", ()),
    "checkpoint": lambda: FiguresReport("checkpoint", "", {}, ()),
    "table": lambda: PublishedReport("automodel", "", ()),
    "rl": lambda: RlReport("rl", "", {}, ()),
    "energy": lambda: FiguresReport("energy", "", {}, ()),
    "wall": lambda: FiguresReport("wall", "", {}, ()),
    "probes": lambda: ProbeReport("probes", "", ()),
    "kernels": lambda: KernelReport("kernels", "", (), (0.04, 0.12), {}),
    "stragglers": lambda: FiguresReport("stragglers", "", {}, ()),
    "exchanges": lambda: FiguresReport("exchanges", "", {}, ()),
    "schedules": lambda: FiguresReport("schedules", "", {}, ()),
    "doctor": lambda: DoctorReport("doctor", "", (), {}),
    "own": lambda: OwnReport(()),
    "programs": lambda: Report("frameworks", (), load_set("h200").tolerances),
}


def published_rows(folder: Path) -> Path:
    """Rows of the published set without their micro batch: nothing but incomplete ones.

    Without it a rank takes one sample at a time: of the smallest batches, so that a step is soon simulated.
    """
    with (lab.CASES / "published" / "rows.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        whole = [row for row in csv.DictReader(file) if row["gpus"] == "8"][:40]
    rows = sorted(whole, key=lambda row: int(row["global_batch"]))[:2]
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "micro_batch": ""} for row in rows)
    return path


def step_rows(folder: Path) -> Path:
    """A step that was not measured."""
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"id": "x", "error": "out of memory"}))
    return path


def collective_rows(folder: Path) -> Path:
    """A small message without a CUDA graph: the host's time."""
    path = folder / "rows.jsonl"
    line = {
        "kind": "collective",
        "op": "all_reduce",
        "ranks": 2,
        "bytes": 1024,
        "s": 1e-4,
    }
    path.write_text(json.dumps(line))
    return path


def checkpoint_rows(folder: Path) -> Path:
    """An ordinary step, without a save."""
    path = folder / "rows.jsonl"
    path.write_text((CASES / "h200" / "train_4gpu.jsonl").read_text().splitlines()[0])
    return path


ROWS = {
    "published": published_rows,
    "h200": step_rows,
    "collectives": collective_rows,
    "checkpoint": checkpoint_rows,
}


def validate(name: str, rows: Path, *more: str) -> Result:
    return CliRunner().invoke(
        cli.main, ["validate", name, "--rows", str(rows), "--jobs", "1", *more]
    )


@together("kind", kinds())
def test_a_report_without_rows_fails(kind: str) -> None:
    """Of every kind of set, with a reason."""
    report = EMPTY[kind]()
    assert not report.passed
    (check,) = [check for check in report.checks if not check.passed]
    assert not check.excusable


@together("name", set_names())
def test_every_bundled_set_is_of_a_kind_that_is_tested(name: str) -> None:
    """A new kind of set needs a row here."""
    assert set_table(name).get("kind", "steps") in EMPTY


@pytest.mark.parametrize(("name", "write"), ROWS.items())
def test_rows_of_which_none_is_judged_fail(
    name: str, write: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Exit code 1; table, JSON and JUnit say why, and no table of known misses excuses it."""
    rows, junit, misses = (
        write(tmp_path),
        tmp_path / "report.xml",
        tmp_path / "misses.toml",
    )
    misses.write_text('"no rows" = 9\n')
    table = validate(name, rows)
    made = validate(
        name, rows, "--json", "--junit", str(junit), "--known-misses", str(misses)
    )
    assert (table.exit_code, made.exit_code) == (1, 1)
    assert "OUTSIDE tolerance" in table.stdout and "nothing was judged" in table.stdout
    assert "nothing was judged" in made.stderr
    report = json.loads(made.stdout)
    assert not report["passed"]
    (check,) = [check for check in report["checks"] if check["name"] == "no rows"]
    assert check["value"] == 1.0 and check["detail"].startswith("nothing was judged: ")
    failures = ElementTree.parse(junit).findall("testcase[@name='no rows']/failure")
    assert [failure.text for failure in failures] == [check["detail"]]


def test_incomplete_rows_are_counted_as_the_reason(tmp_path: Path) -> None:
    """Who gave only incomplete rows reads so."""
    assert (
        "nothing was judged: 2 incomplete"
        in validate("published", published_rows(tmp_path)).stdout
    )


def test_rows_of_fitted_groups_judge_nothing() -> None:
    """A group that constants may be taken from is no proof, unless a sweep of layouts has an order."""
    names = [f"group {k}" for k in range(40)]
    cases = [PublishedCase(name, "s", name, 1.0, 1.0) for name in names]
    fitted = tuple(case for case in cases if case.fitted)
    assert fitted and failed(PublishedReport("p", "", fitted).checks) == ["no rows"]
    sweep = tuple(
        PublishedCase(str(k), "s", fitted[0].group, 1.0 + k, 1.0 + k) for k in range(5)
    )
    assert PublishedReport("p", "", sweep).passed


def test_slices_without_a_limit_judge_nothing(tmp_path: Path) -> None:
    """Small messages of other machines are reported; a file of nothing else does not pass."""
    rows = folder_of("published-collectives") / "reference.csv"
    with rows.open(encoding="utf-8", newline="") as file:
        small = [
            row for row in csv.DictReader(file) if float(row["size_bytes"] or 0) < 2**20
        ]
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(small[0]))
        writer.writeheader()
        writer.writerows(small)
    made = validate("published-collectives", path)
    assert made.exit_code == 1 and "without a limit" in made.stdout


def failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if not check.passed]
