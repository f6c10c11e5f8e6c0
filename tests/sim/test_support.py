"""What predictions of each GPU rest on, as the command lists it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from prestep import cli
from prestep.sim.costs import load_gpu
from prestep.sim.costs.gpu import names
from prestep.sim.tools import support
from prestep.sim.units import percent


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
