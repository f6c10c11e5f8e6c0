"""The set of pipeline schedules on AMD's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import CASES
from lab.sets.schedules import BASE, MEMORY, SPEED, rows_of, validate_set
from prestep.sim.errors import InputError
from prestep.validation.sets.sets import asked

HEAD = "section,pp,vpp,schedule,tokens_s_per_device,tflops,max_memory_GB\n"


def sections() -> dict[str, Path]:
    table, _, _ = asked("schedules", None)
    return {w: CASES / "schedules" / file for w, file in table["sections"].items()}


@pytest.mark.slow
def test_schedules_are_as_fast_beside_1f1b_as_measured() -> None:
    """The limits of set.toml hold; of every section its 1F1B is judged by nothing."""
    report = validate_set("schedules")
    assert report.passed
    assert not [case for case in report.cases if case.name.endswith(" 1f1b")]
    assert {case.kind for case in report.cases} == {SPEED, MEMORY}


def test_a_name_says_the_schedule_and_its_chunks(tmp_path: Path) -> None:
    """The longest name wins; a schedule of one chunk has one, whatever the column says; what ran out is skipped."""
    path = tmp_path / "rows.csv"
    path.write_text(
        HEAD
        + "llama2 7B,8,1,1f1b,100,1,2\n"
        + "llama2 7B,8,2,1f1b-interleaved(vpp4),100,1,2\n"
        + "llama2 7B,8,2,zbb,100,1,2\n"
        + "llama2 7B,8,2,v-half,OOM,,\n"
    )
    skips: list[object] = []
    rows = list(rows_of(path, sections(), skips))  # type: ignore[arg-type]
    assert [(row.schedule, row.chunks) for row in rows] == [
        (BASE, 1),
        ("interleaved", 4),
        ("zero-bubble", 1),
    ]
    assert len(skips) == 1


def test_every_mistake_of_a_file_is_told(tmp_path: Path) -> None:
    """A schedule and a section that nobody knows, and a number that is none."""
    path = tmp_path / "rows.csv"
    wrong = "".join(f"llama2 7B,8,1,1f1b,{text},1,2\n" for text in ("-1", "1e-320"))
    path.write_text(f"{HEAD}gpt,8,1,fast,1,1,1\n{wrong}")
    with pytest.raises(InputError) as told:
        list(rows_of(path, sections(), []))
    assert len(told.value.mistakes) == 4


def test_a_file_without_1f1b_is_refused(tmp_path: Path) -> None:
    """There is nothing to be over."""
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + "llama2 7B,8,2,zbv,100,1,2\n")
    with pytest.raises(InputError, match="1f1b"):
        validate_set("schedules", path)
