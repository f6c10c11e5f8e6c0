"""Your own measured steps: any job with a time, in CSV or JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.validation import command
from prestep.validation.sets import own

JOB = """
[cluster]
name = "dgx-h100"
gpus = 2
[model]
kind = "mlp"
sizes = [256, 256]
[training]
micro_batch = 8
[parallel]
dp = 2
"""


def rows(tmp_path: Path, text: str, name: str = "steps.csv") -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    path = tmp_path / name
    path.write_text(text)
    return path


def test_rows_of_every_form_are_the_same_step(tmp_path: Path) -> None:
    """Two columns, named columns, JSON lines and a scenario's tables are predicted alike."""
    plain = own.validate_own(rows(tmp_path, "job.toml,1 ms\n")).cases[0]
    tables = (
        '{"cluster": {"name": "dgx-h100", "gpus": 2}, "model": {"kind": "mlp", "sizes": [256, 256]}, '
        '"training": {"micro_batch": 8}, "parallel": {"dp": 2}}'
    )
    others = [
        "measured,job,cluster,training.micro_batch\n0.001,job.toml,,8\n",
        '{"job": "job.toml", "measured": 0.001}\n',
        f'{{"scenario": {tables}, "step_times": [0.001, 0.001, 0.002]}}\n',
    ]
    for text in others:
        path = rows(tmp_path, text)
        case = own.validate_own(path).cases[0]
        assert not case.error
        assert (case.row.measured, case.predicted) == (1e-3, plain.predicted)


def test_a_row_is_held_to_its_limit(tmp_path: Path) -> None:
    """The gate passes within the limit of each row, fails past it, and fails for a job that is refused."""
    path = rows(tmp_path, "job.toml,1\n")
    time = own.validate_own(path).cases[0].predicted
    head = "job,measured,limit,training.micro_batch\n"
    cases = {
        f"{time * 1.04},5%,": True,
        f"{time * 1.06},5%,": False,
        f"{time},,0": False,
    }
    for row, passes in cases.items():
        (report,) = command.compare((), rows(tmp_path, f"{head}job.toml,{row}\n"))
        assert report.passed == passes, row
    (page,) = [command.as_json([report])]
    assert "micro_batch" in json.dumps(page["cases"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scenario,step\njob.toml,1\n",
            "steps.csv:1: found the columns scenario, step",
        ),
        ("job,measured\njob.toml,fast\n", "steps.csv:2: measured"),
        ("job,measured\njob.toml,-1\n", "above 0"),
        ("job,measured,limit\njob.toml,1,much\n", "limit: found much"),
        ("job,measured\n,1\n", "job: found null"),
        ("job,measured\n", "no rows"),
        ("job.toml,1\njob.toml,1,2\n", "found 3 cells"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    """With its line, what was found and what was expected."""
    with pytest.raises(InputError, match=message):
        own.validate_own(rows(tmp_path, text))


def test_steps_that_measure_wrote_are_jobs_with_memory(tmp_path: Path) -> None:
    """Of every row the time and the fullest rank's memory; a run that failed is skipped, and counted."""
    case = {"model": "seedmlp_1024", "mode": "ddp", "mbs": 64}
    ran = {"step_s_by_rank": {"0": [1e-3], "1": [1e-3]}}
    peaks = {"peak_alloc_by_rank": {"0": 2e7, "1": 3e7}}
    about = {"id": "mlp", "case": case, "world": 2}
    lines = [about | ran | peaks, about | {"error": "out of memory"}]
    path = rows(tmp_path, "\n".join(map(json.dumps, lines)), "training.jsonl")
    report = own.validate_own(path, cluster="dgx-h100")
    (one,) = report.cases
    assert one.row.scenario.cluster.name == "dgx-h100" and one.row.group == "mlp"
    assert one.memory_error == pytest.approx(one.memory[1] / 3e7 - 1)
    assert [skip.reason for skip in report.skips] == ["out of memory"]
    assert {"all", "mlp", "peak memory"} == report.groups.keys()


def test_collectives_are_held_to_the_mean_of_their_group(tmp_path: Path) -> None:
    """One far size among good ones passes; all of them far off do not."""
    size = {"kind": "collective", "op": "all_reduce", "ranks": 2, "cluster": "dgx-h100"}
    lines = [size | {"bytes": 2**power, "s": 1.0} for power in range(24, 29)]
    path = rows(tmp_path, "\n".join(map(json.dumps, lines)), "collectives.jsonl")
    times = [case.predicted for case in own.validate_own(path).cases]
    for passes, factors in ((True, (1.5, 1, 1, 1, 1)), (False, (1.5,) * 5)):
        found = [
            line | {"s": t * f}
            for line, t, f in zip(lines, times, factors, strict=True)
        ]
        path.write_text("\n".join(map(json.dumps, found)))
        assert own.validate_own(path).passed == passes
