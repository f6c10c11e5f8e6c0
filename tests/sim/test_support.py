"""What predictions of each GPU rest on: the page and the command."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from prestep import cli
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import names
from prestep.sim.tools import support
from prestep.sim.units import percent

PAGE = Path(cli.__file__).parent / "docs" / "gpus.md"


def test_the_page_is_what_the_command_writes() -> None:
    """Tables of the page are those of this tree's GPUs."""
    text = PAGE.read_text(encoding="utf-8")
    assert support.written(text) == text


def test_every_gpu_is_listed_with_what_it_rests_on() -> None:
    """By name alone, in a line, and as JSON: formats are those that the GPU computes."""
    plain = CliRunner().invoke(cli.main, ["list", "gpus"])
    assert plain.output.split() == names()
    matrix = json.loads(CliRunner().invoke(cli.main, ["list", "gpus", "--json"]).output)
    assert [*matrix] == names()
    for name, row in matrix.items():
        formats = {key.split()[-1] for key in row if key.startswith("products")}
        assert formats == {*support.FORMATS} & {*load_gpu(name).peak}
        assert {*row.values()} <= {"measured", "fitted", "datasheet", "guess"}
    told = support.summary("h200")
    assert told.startswith("measured: products bf16")
    half, most = support.table_errors()["h200", "products bf16"]
    assert f"products bf16 {percent(half)}, {percent(most)}" in told
    assert "tables of libraries" not in support.summary("v100")
