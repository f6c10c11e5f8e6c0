"""Rows of measurements are read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.formats.configurations import of_step
from lab.formats.step_times import spread_of
from lab.report.steps import FAMILIES
from lab.sets.step_sets import load_set
from prestep.sim.errors import InputError
from prestep.validation.formats.rows import Row, read_rows
from tests.sample import together
from tests.validation.lines import written

CASE = {"id": "a", "model": "llama1b", "mode": "ddp", "mbs": 2}


def record(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "world": 2,
        "case": CASE,
        "step_s_by_rank": {"0": [1.0, 2.0], "1": [3.0, 4.0]},
    } | changes


def test_measured_is_the_median_over_ranks_and_steps(tmp_path: Path) -> None:
    """A row's time is the median of all steps of all ranks."""
    (row,) = read_rows(written(tmp_path, record()))
    assert row.measured == 2.5


def test_spread_is_over_steps(tmp_path: Path) -> None:
    """Ranks that differ by a constant do not spread; steps that differ do."""
    steady, varied = read_rows(
        written(
            tmp_path,
            record(step_s_by_rank={"0": [1.0, 1.0], "1": [2.0, 2.0]}),
            record(step_s_by_rank={"0": [1.0, 2.0], "1": [1.0, 2.0]}),
        )
    )
    assert spread_of(steady) == 0
    assert spread_of(varied) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ("dgx-h200", {"name": "dgx-h200"}),
        ("ours.toml", {"file": "ours.toml"}),
        ({"host_factor": 1.0}, {"host_factor": 1.0}),
    ],
)
def test_a_row_says_its_cluster_by_name_file_or_keys(
    tmp_path: Path, said: object, keys: dict[str, Any]
) -> None:
    """A text is a name, or a file where it ends in .toml; an object has keys of [cluster]."""
    (row,) = read_rows(written(tmp_path, record(cluster=said)))
    assert row.cluster == keys


def test_rows_with_an_error_are_kept_apart(tmp_path: Path) -> None:
    """A row that holds an error has no steps, and is not a mistake in the file."""
    (row,) = read_rows(
        written(
            tmp_path,
            {"id": "a", "label": "default", "rank": 0, "error": "out of memory"},
        )
    )
    assert row.error == "out of memory"
    assert not row.steps


@together(
    ("bad", "key"),
    [
        (record(step_s_by_rank={}), "step_s_by_rank"),
        (record(step_s_by_rank={"0": [0.0]}), "step_s_by_rank.0"),
        (record(step_s_by_rank={"0": ["fast"]}), "step_s_by_rank.0"),
        (record(world=0), "world"),
        (record(case=None), "case"),
        (record(cluster=4), "cluster"),
        (record(cluster=""), "cluster"),
        ({"id": "a"}, "step_s_by_rank"),
        ([1], ""),
    ],
)
def test_every_bad_line_is_named(tmp_path: Path, bad: Any, key: str) -> None:
    """A line that cannot be read is a mistake with file, line and key, and the good lines do not hide it."""
    with pytest.raises(InputError) as error:
        read_rows(written(tmp_path, record(), bad))
    assert [(mistake.where, mistake.key) for mistake in error.value.mistakes] == [
        ("rows.jsonl:2", key)
    ]


def test_text_that_is_not_json(tmp_path: Path) -> None:
    """A broken line and a missing file are input errors, not tracebacks."""
    path = tmp_path / "rows.jsonl"
    path.write_text("{")
    for wrong in (path, tmp_path / "none.jsonl"):
        with pytest.raises(InputError):
            read_rows(wrong)


def test_bundled_set() -> None:
    """The set holds the 79 measured rows, with distinct names and every family."""
    rows = load_set("h200").rows
    assert len(rows) == 79
    assert len({row.name for row in rows}) == 79
    assert {row.family for row in rows} == set(FAMILIES)
    assert sum(spread_of(row) > 0.2 for row in rows) == 10


def test_configuration_ignores_bookkeeping() -> None:
    """Rows that ran the same thing are the same configuration, whatever they are called and however often they ran."""
    first = Row("a", "f:1", CASE, 4)
    again = Row("b", "f:2", {**CASE, "id": "b", "steps": 50, "trace": True}, 4)
    other = Row("c", "f:3", {**CASE, "mbs": 4}, 4)
    assert of_step(first) == of_step(again) != of_step(other)
    assert of_step(first) != of_step(Row("a", "f:1", CASE, 2))
    alone = {**CASE, "mode": "single"}
    assert of_step(Row("a", "f:1", alone, 1)) == of_step(Row("a", "f:1", alone, 4))


def test_times_of_python_are_read_as_strictly_as_steps(tmp_path: Path) -> None:
    """A time that is no number is named with its key."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"id": "a", "case": {}, "world": 1, "step_s_by_rank": {"0": [1.0]}, '
        '"cpu_step_s_by_rank": {"0": ["x"]}}\n'
    )
    with pytest.raises(InputError, match=r"cpu_step_s_by_rank\.0"):
        read_rows(rows)
