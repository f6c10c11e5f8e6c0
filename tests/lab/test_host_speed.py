"""How slow a measured machine's host was: other programs' quickest steps say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from lab.sets.host_speed import WITNESSES, factor_of, of_others
from lab.sets.programs import Recorded, Run, _measured_hosts
from prestep.validation.formats.rows import Row
from prestep.workloads.capture import recording
from tests.workloads.test_capture_recording import tables

FACTORS = st.lists(st.none() | st.floats(0.5, 4.0), max_size=8)


@given(FACTORS, st.floats(5.0, 9.0))
def test_no_row_is_its_own_witness(factors: list[float | None], other: float) -> None:
    """What a row's own steps say changes the factor of every other row, never its own."""
    for at in range(len(factors)):
        changed = [*factors[:at], other, *factors[at + 1 :]]
        assert of_others(changed)[at] == of_others(factors)[at]


@given(FACTORS)
def test_few_programs_say_nothing(factors: list[float | None]) -> None:
    """The median of the others where three of them say a factor, else nothing."""
    for at, factor in enumerate(of_others(factors)):
        others = [f for n, f in enumerate(factors) if n != at and f is not None]
        expected = median(others) if len(others) >= WITNESSES else None
        assert factor == expected


def test_a_host_that_is_known_stays() -> None:
    """Rows of a start that set.toml names keep its host; those of another file have what its rows say."""
    row = Row("a", "rows:1", {}, 1)
    mine = Run(row, "dgx-h100", Path("mine.jsonl"), 1.9)
    known = replace(mine, file=Path("known.jsonl"), own=True)
    runs = [mine] * 4 + [known]
    said = [Recorded(Path(), "", factor) for factor in (1.0, 2.0, 3.0, 4.0, 9.0)]
    hosts = [run.host for run in _measured_hosts(runs, said)]
    assert hosts == [3.0, 3.0, 2.0, 2.0, 1.9]


def test_slow_first_steps_say_nothing_of_a_host(tmp_path: Path) -> None:
    """A first step compiles, allocates and tunes: what a program takes later without it is the host's time."""
    path = tmp_path / "a.capture"
    recording.write(path, tables([["operate", 0, 0, 0, 1000]] * 20))
    row = Row("a", "rows:1", {}, 1)
    slow, quick = (
        replace(row, cpu_steps={0: steps})
        for steps in ((9e-3, 9e-3, 9e-3, 6e-3, 6e-3), (6e-3, 6e-3))
    )
    said = factor_of(quick, path, "h200-host-4")
    assert said is not None and factor_of(slow, path, "h200-host-4") == said


def test_a_host_that_bounds_every_step_says_how_slow_it_usually_is(
    tmp_path: Path,
) -> None:
    """One quick step among slow ones is no measure of it."""
    path = tmp_path / "a.capture"
    recording.write(path, tables([["operate", 0, 0, 0, 1000]] * 20))
    steady, lucky = (
        Row("a", "rows:1", {}, 1, cpu_steps={0: (9e-3, *later, 9e-3, 9e-3)})
        for later in ((9e-3,), (6e-3,))
    )
    expected = factor_of(steady, path, "h200-host-4")
    assert expected is not None
    assert factor_of(lucky, path, "h200-host-4") == expected
