"""The set of nodes with watts at the wall."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from lab import CASES
from lab.sets.wall import BUSY, validate_set
from prestep.sim import api
from prestep.sim.costs.draw import wall
from prestep.sim.errors import InputError

FOLDER = CASES / "wall"


def rows(file: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (FOLDER / file).read_text().splitlines()]


def test_nodes_whose_gpus_are_held_draw_what_was_logged() -> None:
    """Nodes that nothing was fitted to are within a tenth each."""
    report = validate_set("wall")
    assert report.passed
    assert report.groups[BUSY].worst < 0.1


def test_a_system_is_for_fitting_or_judged() -> None:
    """No submitter's system is in both files."""
    table = tomllib.loads((FOLDER / "set.toml").read_text())
    groups = [
        {(row["submitter"], str(row["id"]).split(".")[0]) for row in rows(file)}
        for file in (*table["rows"], *table["calibration"])
    ]
    assert not groups[0] & groups[1]


def test_liquid_spares_fans() -> None:
    """A host that liquid cools draws less around the same GPUs, and its other parts as much."""
    assert wall(liquid=True).overhead < wall().overhead
    assert wall(liquid=True).host_per_gpu == wall().host_per_gpu


def test_a_rack_cooled_by_liquid_says_so() -> None:
    """The energy of a step on a GB200 rack has no fans in it."""
    assert api.load_cluster("gb200-nvl72").cluster_facts.liquid
    assert not api.load_cluster("dgx-h100").cluster_facts.liquid


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"busy_w": -1}, "busy_w"), ({"gpus": 0}, "gpus"), ({"liquid": "yes"}, "liquid")],
)
def test_rows_with_mistakes_are_refused(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    """A row says where, what was found and what was expected."""
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(rows("liquid.jsonl")[0] | changes) + "\n")
    with pytest.raises(InputError, match=told):
        validate_set("wall", path)


@pytest.mark.parametrize(
    "line",
    [
        "null",
        "[1]",
        '"x"',
        "{",
        "[" * 100_000,
        f'{{"id": "a", "gpu": "h100", "gpus": 1{"0" * 400}, "liquid": true}}',
        f'{{"id": "a", "gpu": "h100", "gpus": 8, "liquid": true, "busy_w": 1{"0" * 400}}}',
    ],
)
def test_a_line_that_is_no_row_is_refused_with_its_place(
    line: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=r"rows\.jsonl:1"):
        validate_set("wall", path)
