"""The page of a cluster file's keys."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lab.report import cluster_keys as reference
from prestep.sim.errors import PrestepError
from prestep.topologies.core.facts import KINDS, MEANINGS
from prestep.topologies.core.quantity import LinkSpec
from tests.sample import together

PAGE = Path(__file__).parents[2] / "docs" / "cluster-files.md"


def test_the_page_has_the_tables_of_this_tree() -> None:
    """`python -m lab.report.cluster_keys docs/cluster-files.md` was run after the last change of a key."""
    page = PAGE.read_text(encoding="utf-8")
    assert reference.written(page) == page


def _keys(part: str) -> set[str]:
    """The keys in the first cells of a table's rows."""
    cells = (line.split(" | ")[0] for line in part.splitlines() if line[:1] == "`")
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@together("name", sorted(reference.families()))
def test_every_key_of_a_family_is_listed_with_its_meaning(name: str) -> None:
    """In the family's own table, or in that of `host` where it has the same default."""
    part = (
        reference.tables()
        .partition(f'### family = "{name}"\n')[2]
        .partition("\n### ")[0]
    )
    host = (
        reference.tables().partition('### family = "host"\n')[2].partition("\n### ")[0]
    )
    for entry in fields(reference.families()[name].Params):
        assert entry.name in _keys(part) or (
            "The keys of `host`" in part and entry.name in _keys(host)
        )
    assert all(
        line.count(" | ") == 2 and not line.endswith("| ")
        for line in part.splitlines()
        if line.startswith("`")
    )


def test_links_say_what_one_of_them_does() -> None:
    """Bandwidth and latency of the default."""
    assert "\n`nvlink` | 20.6 GB/s, 300 ns |" in reference.tables()
    assert LinkSpec.__name__ not in reference.tables()


@together("key", KINDS)
def test_every_fact_is_explained(key: str) -> None:
    """A fact's meaning is a sentence, and the page prints it."""
    assert MEANINGS[key].endswith(".") and MEANINGS[key] in reference.tables()


@pytest.mark.parametrize("page", ["no markers", f"{reference.END}{reference.BEGIN}"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    """The tables never go to a place that nobody chose."""
    with pytest.raises(PrestepError, match="keys: begin"):
        reference.written(page)


def test_the_command_writes_between_the_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of the page stays; without a page the tables are printed."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{reference.BEGIN}\nstale words\n{reference.END}\nafter\n")
    reference.main([str(page)])
    text = page.read_text()
    assert (
        text.startswith("before\n")
        and text.endswith("\nafter\n")
        and "stale words" not in text
    )
    reference.main([])
    assert capsys.readouterr().out.strip() == reference.tables()
