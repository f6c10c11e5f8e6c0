"""`prestep replay` of a whole job's operations: steps as recorded, the ideal step, and whose operations cost what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.errors import InputError
from prestep.sim.replay.stragglers import analyse, step_times, times_of
from prestep.workloads.traces import jobs
from prestep.workloads.traces.operations import (
    CLIP,
    EMBEDDING,
    GATHER,
    NORMS,
    OPTIMIZER,
    SCATTER,
)

FORWARD, BACKWARD, SENT = 1.0, 2.0, 0.1
Row = dict[str, Any]


def row(kind: str, number: int, start: float, length: float, stage: int) -> Row:
    chunk = 0 if kind.endswith("compute") or kind in (GATHER, SCATTER) else -1
    return {
        "stage": stage,
        "optype": kind,
        "seq_id": number,
        "start_ts": start,
        "duration": length,
        "mc": chunk,
        "gmc": stage if kind.endswith("compute") else -1,
    }


def pipeline(slow: float = 1.0) -> Iterator[Row]:
    """Two stages, one microbatch, by hand: `slow` is the factor on the second stage's passes."""
    forward, backward = FORWARD * slow, BACKWARD * slow
    at = 0.1
    yield row(GATHER, 0, 0.0, 0.1, 0)
    yield row(GATHER, 0, 0.0, 0.1, 1)
    yield row("forward-compute", 0, at, FORWARD, 0)
    yield row("forward-send", 0, at := at + FORWARD, SENT, 0)
    yield row("forward-recv", 0, 0.0, at + SENT, 1)
    yield row("forward-compute", 0, at := at + SENT, forward, 1)
    yield row("backward-compute", 0, at := at + forward, backward, 1)
    yield row("backward-send", 0, at := at + backward, SENT, 1)
    yield row("backward-recv", 0, 1.1, at + SENT - 1.1, 0)
    last = at
    yield row("backward-compute", 0, at := at + SENT, BACKWARD, 0)
    first = at + BACKWARD
    for stage, begin in ((0, first), (1, last)):
        yield row("gc", 0, begin, 0.0, stage)
        yield row(NORMS, 0, begin, 0.1, stage)
        yield row(EMBEDDING, 0, begin + 0.1, first + 0.2 - begin - 0.1, stage)
        yield row(SCATTER, 0, first + 0.2, 0.1, stage)
        yield row(CLIP, 0, first + 0.3, 0.1, stage)
        yield row(OPTIMIZER, 0, first + 0.4, 0.1, stage)


def written(folder: Path, *steps: tuple[float, ...], change: Any = None) -> Path:
    """A job whose steps have these factors, one for each data-parallel rank."""
    rows = [
        {"dp_rank": rank, "step": number, **one}
        for number, factors in enumerate(steps, 3)
        for rank, factor in enumerate(factors)
        for one in pipeline(factor)
    ]
    table = pd.DataFrame(rows)
    table = change(table) if change else table
    path = folder / "job.parquet"
    table.to_parquet(path)
    return path


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["replay", *map(str, arguments)])


def test_recorded_steps_are_replayed_exactly(tmp_path: Path) -> None:
    """Pauses, transfers and durations of a recording add up to it."""
    path = written(tmp_path, (1.0,), (1.5,), (3.0,))
    job = jobs.read(path)
    assert step_times(job, times_of(job)) == pytest.approx(job.step_times)
    assert job.step_times == pytest.approx([6.8 + 3 * (f - 1) for f in (1.0, 1.5, 3.0)])
    assert analyse(job).error < 1e-9


def test_a_job_without_stragglers_has_no_slowdown(tmp_path: Path) -> None:
    """All operations of a kind take the same: the ideal step is the recorded one, and nothing costs anything."""
    analysis = analyse(jobs.read(written(tmp_path, (1.0,), (1.0,))))
    assert analysis.ideal == pytest.approx(analysis.recorded)
    slowdowns = [v for of in analysis.by.values() for v in of.values()]
    assert [analysis.slowdown, *slowdowns] == pytest.approx(
        [1.0] * (len(slowdowns) + 1)
    )


def test_the_slow_stage_costs_what_it_takes(tmp_path: Path) -> None:
    """Means of both stages are ideal; the slow one keeps its times, the other is faster than the mean."""
    analysis = analyse(jobs.read(written(tmp_path, (2.0,))))
    ideal = 6.8 - 6.0 + 2 * 1.5 + 2 * 3.0
    assert analysis.ideal == pytest.approx([ideal])
    assert analysis.slowdown == pytest.approx(9.8 / ideal)
    assert analysis.by["stage"] == pytest.approx(
        {"1": (ideal + 1.5) / ideal, "0": (ideal - 1.5) / ideal}
    )
    kinds = analysis.by["kind"]
    assert kinds["backward-compute"] == pytest.approx(1.0)
    assert {"forward-pp-comm", "backward-pp-comm"} <= set(kinds)


def test_json_and_page(tmp_path: Path) -> None:
    """`prestep replay FILE` finds the format by the file's columns."""
    path = written(tmp_path, (1.0,), (2.0,))
    made = replay(path, "--json")
    assert made.exit_code == 0, made.output
    table = json.loads(made.stdout)
    assert list(table["measured_step_time"]) == ["3", "4"]
    assert table["simulated_step_time"] == pytest.approx(table["measured_step_time"])
    assert table["worst_error"] < 1e-9 and table["stages"] == 2
    assert "slowdown" in replay(path).stdout


def test_changes_of_a_job(tmp_path: Path) -> None:
    """Kinds of operations faster or free, a slow rank, a host without pauses: on the path of two stages by hand."""
    path = written(tmp_path, (1.0, 1.0))
    whole = 6.8

    def step(*items: str) -> float:
        changes = [part for item in items for part in ("--set", item)]
        made = replay(path, "--json", *changes)
        assert made.exit_code == 0, made.output
        (time,) = json.loads(made.stdout)["simulated_step_time"].values()
        return float(time)

    assert step() == step("kernels.compute=1x") == pytest.approx(whole)
    assert step("kernels.backward-compute=0.5x") == pytest.approx(whole - 2.0)
    assert step("kernels.forward_compute=0") == pytest.approx(whole - 2.0)
    assert step("kernels.forward-pp-comm=2x") == pytest.approx(whole + SENT)
    slow = ("slow_rank=1", "slow_factor=1.5")
    assert step(*slow) == pytest.approx(step("kernels.compute=1.5x"), rel=0.02)
    assert step("host_factor=0") <= whole + 1e-9


def test_what_is_free_saves_what_it_took(tmp_path: Path) -> None:
    """`--free` has every kind and the host, each saves no more than the step, and the passes save most."""
    path = written(tmp_path, (1.0, 1.2))
    table = json.loads(replay(path, "--free", "--json").stdout)
    rows = table["free"]
    (whole,) = table["simulated_step_time"].values()
    for row in rows:
        assert 0 <= row["step_time"] <= whole + 1e-9
        assert row["saved"] == pytest.approx(whole - row["step_time"])
    assert rows[0]["free"] == "backward-compute"
    assert {"host", "forward-pp-comm"} <= {row["free"] for row in rows}
    assert "if this took no time" in replay(path, "--free").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "nvlink.bandwidth=2x"), "no sizes, kernels or links"),
        (("--set", "kernels.gemm=2x"), '"gemm"'),
        (("--set", "kernels.compute=fast"), "a factor"),
        (("--set", "faults.slow_rank=1"), "faults.slow_factor"),
        (("--set", "slow_rank=7", "--set", "slow_factor=2"), "0 to 1"),
        (("--cluster", "dgx-h100"), "no sizes to place"),
        (("--ranks", "4"), "bytes"),
    ],
)
def test_changes_that_a_job_cannot_make(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    """Exit 2, with what the file lacks or what can be said."""
    made = replay(written(tmp_path, (1.0, 1.0)), *arguments)
    assert made.exit_code == 2 and told in made.output
    assert "Traceback" not in made.output


def test_mistakes_are_told(tmp_path: Path) -> None:
    """Exit 2: options that change a replay, unknown operations, ranks that did other things, transfers without a peer."""
    path = written(tmp_path, (1.0, 1.0))
    assert replay(path, "--set", "nvlink.bandwidth=2x").exit_code == 2
    assert "that file alone" in replay(path, path).output

    def renamed(table: pd.DataFrame) -> pd.DataFrame:
        return table.replace({"optype": {"gc": "sweep"}})

    def shortened(table: pd.DataFrame) -> pd.DataFrame:
        return table.iloc[:-1]

    def empty_cell(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[0, "duration"] = np.nan
        return table

    def unmatched(table: pd.DataFrame) -> pd.DataFrame:
        return table[table.optype != "forward-send"]

    cases = {
        '"sweep"': renamed,
        "operations in each of": shortened,
        "without a number": empty_cell,
        "transfers of": unmatched,
    }
    for expected, change in cases.items():
        made = replay(written(tmp_path, (1.0, 1.0), change=change))
        assert made.exit_code == 2 and expected in made.output, made.output
    with pytest.raises(InputError, match="column"):
        jobs.read(
            written(tmp_path, (1.0,), change=lambda table: table.drop(columns="gmc"))
        )
