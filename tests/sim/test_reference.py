"""The page of a scenario's keys."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lab.report.scenario_keys import BEGIN, END, main, tables, written
from prestep.sim.errors import PrestepError
from prestep.sim.spec.sections import SECTIONS
from tests.sample import together

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"


def test_the_page_has_the_tables_of_this_tree() -> None:
    """`python -m lab.report.scenario_keys docs/scenarios.md` was run after the last change of a key."""
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page


@together("section", SECTIONS)
def test_every_key_is_listed_with_its_meaning(section: str) -> None:
    """A row for each key, under its section."""
    part = tables().partition(f"### [{section}]\n")[2].partition("\n### [")[0]
    for entry in fields(SECTIONS[section]):
        meaning = entry.metadata["doc"].replace("|", "\\|")  # else a cell ends there
        assert f"\n`{entry.name}` | " in part and meaning in part


def test_a_row_says_units_limits_and_default() -> None:
    """What may be written, and what holds when nothing is."""
    text = tables()
    assert '\n`bucket_cap` | "25 MiB" |' in text
    assert "\n`dp` | int\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}1: **1** |" in text
    assert "| **1f1b**, dualpipe, gpipe, interleaved" in text
    assert '\n`slow_per_layer` | "1 ms": **0 s** |' in text
    assert "\n`uneven_stages` | **false** |" in text


@pytest.mark.parametrize(
    "page", ["no markers", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"]
)
def test_a_page_without_markers_is_refused(page: str) -> None:
    """The tables never go to a place that nobody chose."""
    with pytest.raises(PrestepError, match="keys: begin"):
        written(page)


def test_the_command_writes_between_the_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of the page stays; without a page the tables are printed."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nstale words\n{END}\nafter\n")
    main([str(page)])
    text = page.read_text()
    assert (
        text.startswith("before\n")
        and text.endswith("\nafter\n")
        and "stale words" not in text
        and tables() in text
    )
    main([])
    assert capsys.readouterr().out.strip() == tables()
