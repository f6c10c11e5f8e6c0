"""Calibration finds the constants that made the measurements, holds a part out, and never overwrites by accident."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.collectives import constants
from prestep.sim.errors import InputError
from prestep.validation.fit import calibrate
from prestep.validation.fit.calibrate import Calibration, render
from prestep.validation.fit.collectives import PACE, free, items_by_block
from prestep.validation.fit.logs import read_files
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.nccl_env import settings_of

SIZES = [2**k for k in range(3, 33, 2)]


def measured_with(
    change: Callable[[dict[str, Any]], None], sizes: list[int], op: str = "all_reduce"
) -> list[Row]:
    """Rows that a machine with other constants would measure: forced ring and LL on the four-GPU host."""
    tables = copy.deepcopy(dict(constants.load("h200").tables))
    change(tables)
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    wanted = settings_of(env, op, None, "")[0]
    rows = [
        Row("Ring-LL", op, 4, size, 1.0, 1.0, at % 2 == 1, wanted=wanted)
        for at, size in enumerate(sizes)
    ]
    table = constants.build(tables, "h200", "fitted")
    (items,) = items_by_block(rows).values()
    return [
        Row(
            row.label, op, 4, row.size, predict(table), 1.0, row.held_out, wanted=wanted
        )
        for row, predict in items
    ]


def slower(tables: dict[str, Any]) -> None:
    tables["ring"]["LL"]["start"] *= 2
    tables["ring"]["LL"]["hop"] *= 3


@lru_cache(maxsize=1)
def fitted() -> Calibration:
    return calibrate.calibrate(measured_with(slower, SIZES))


def test_constants_are_found_again() -> None:
    """Rows made with other constants are predicted by the fit, those held out too, and were not before."""
    made = fitted()
    assert made.fitted == ("ring.LL",)
    for kind in ("fitted", "held out"):
        assert np.abs(made.before["Ring-LL", kind]).mean() > 0.10
        assert np.abs(made.after["Ring-LL", kind]).mean() < 0.02


def test_held_out_rows_move_nothing() -> None:
    """However wrong the rows are that are held out, the constants are the same."""
    rows = measured_with(slower, SIZES)
    spoilt = [replace(row, time=row.time * 7) if row.held_out else row for row in rows]
    assert calibrate.calibrate(spoilt).tables == fitted().tables


def test_only_what_was_measured_changes() -> None:
    """Tables without rows stay as they were."""
    made, before = fitted(), constants.load("h200").tables
    assert made.tables["ring"]["LL"] != before["ring"]["LL"]
    assert made.tables["ring"]["Simple"] == before["ring"]["Simple"]
    assert (
        made.tables["pairs"] == before["pairs"]
        and made.tables["tree"] == before["tree"]
    )


def test_the_file_is_one_of_a_gpu() -> None:
    """What is written builds constants again, says what it rests on, and predicts as the fit did."""
    text = render(fitted(), [Path("a.log")])
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "a.log" in head[0] and "held out" in head[2] and "ring.LL" in head[3]
    tables = tomllib.loads(text)
    assert "nvls" not in tables  # those are every GPU's, from extra-nccl.toml
    again = constants.build(tables, "h200", "fitted")
    assert again.paces["ring", "LL"].hop == pytest.approx(
        fitted().tables["ring"]["LL"]["hop"], rel=1e-3
    )


def test_another_gpu_says_what_it_borrows(tmp_path: Path) -> None:
    """In the file of a GPU without one, tables that no row settled are marked as a guess."""
    rows = [
        Row(
            r.label,
            r.op,
            4,
            r.size,
            r.time,
            r.eager,
            r.held_out,
            wanted=r.wanted,
            cluster="dgx-h100",
        )
        for r in measured_with(slower, SIZES)
    ]
    made = calibrate.calibrate(rows)
    assert made.gpu == "h100"
    assert made.tables["tree"]["LL"]["evidence"] == "guess"
    assert "evidence" not in made.tables["ring"]["LL"]


def test_few_rows_move_few_constants() -> None:
    """Many sizes settle the shape of the curve, some only start, hop and rates, three nothing."""
    dense = [int(2 ** (k / 2)) for k in range(6, 64)]
    before = constants.load("h200").tables["ring"]["LL"]
    for sizes, shape in ((SIZES, False), (dense, True)):
        made = calibrate.calibrate(measured_with(slower, sizes)).tables["ring"]["LL"]
        assert (
            made["start"] != before["start"]
            and (made["grain"] != before["grain"]) == shape
        )
    none = calibrate.calibrate(measured_with(slower, SIZES[:3]))
    assert (none.fitted, none.left) == ((), ("ring.LL",))


def test_constants_that_no_row_rests_on_stay() -> None:
    """All-reduces say nothing of an all-gather's rates, however many there are."""
    dense = [int(2 ** (k / 2)) for k in range(6, 64)]
    before, after = (
        constants.load("h200").tables["ring"]["LL"],
        calibrate.calibrate(measured_with(slower, dense)).tables,
    )
    for key in ("rate", "link"):
        others = {op: value for op, value in before[key].items() if op != "all_reduce"}
        assert {op: after["ring"]["LL"][key][op] for op in others} == others


def test_what_is_free() -> None:
    """Every number of a block that has a range is fitted, a table by operation; others are not."""
    block = {
        "start": 1e-6,
        "cache": 3e7,
        "rate": {"all_reduce": 1e10, "all_gather": 1e10},
    }
    assert free(block) == [("start",), ("rate", "all_reduce"), ("rate", "all_gather")]
    assert all(low < high for low, high in PACE.values())


LOG = """# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
"""


def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    lines = [
        f"{8 << k} {2 << k} float sum -1 {20 + (8 << k) / 3e5:.2f} 1 1 0 {20 + (8 << k) / 3e5:.2f} 1 1 0\n"
        for k in range(0, 30, 2)
    ]
    path.write_text(LOG + "".join(lines))
    return path


def test_the_command(tmp_path: Path) -> None:
    """Logs in, a file out; both errors are printed; an existing file needs --force; a cluster has to be named."""
    output, run = tmp_path / "h100-nccl.toml", CliRunner().invoke
    arguments = ["calibrate", str(log(tmp_path)), "-o", str(output)]
    assert "--cluster" in run(cli.main, arguments).output
    made = run(cli.main, [*arguments, "--cluster", "dgx-h100"])
    assert made.exit_code == 0, made.output
    assert "held out" in made.output and tomllib.loads(output.read_text())["ring"]
    output.write_text("mine")
    again = run(cli.main, [*arguments, "--cluster", "dgx-h100"])
    assert (
        again.exit_code == 2
        and "--force" in again.output
        and output.read_text() == "mine"
    )
    assert (
        run(cli.main, [*arguments, "--cluster", "dgx-h100", "--force"]).exit_code == 0
    )
    assert output.read_text() != "mine"


def test_nothing_is_overwritten_by_accident(tmp_path: Path) -> None:
    """An existing file is refused before any work, and by the writer too."""
    output = tmp_path / "a.toml"
    output.write_text("mine")
    with pytest.raises(InputError, match="--force"):
        calibrate.write(fitted(), output, [])
    early = CliRunner().invoke(
        cli.main, ["calibrate", str(tmp_path / "none.log"), "-o", str(output)]
    )
    assert (
        early.exit_code == 2
        and "--force" in early.output
        and "none.log" not in early.output
    )
    assert output.read_text() == "mine"


def test_every_wrong_log_is_named(tmp_path: Path) -> None:
    """Mistakes of all files come together; a file of another kind says what is taken."""
    bad, lines = tmp_path / "bad.txt", tmp_path / "rows.jsonl"
    bad.write_text("hello\n")
    lines.write_text(json.dumps({"kind": "collective", "op": "x"}))
    with pytest.raises(InputError) as error:
        read_files([bad, lines, tmp_path / "none.log"])
    assert [
        mistake.where.partition(":")[0] for mistake in error.value.mistakes[:2]
    ] == ["bad.txt", "rows.jsonl"]
    assert (
        "nccl-tests" in error.value.mistakes[0].expected
        and len(error.value.mistakes) == 3
    )


def test_rows_have_to_fit_the_cluster() -> None:
    """No rows, too many ranks, or two kinds of GPU are input errors."""
    row = Row("a", "all_reduce", 4, 2**20, 1e-4, 1e-4, cluster="dgx-h100")
    other = Row("a", "all_reduce", 4, 2**20, 1e-4, 1e-4, cluster="dgx-h200")
    many = Row("a", "all_reduce", 16, 2**20, 1e-4, 1e-4, cluster="dgx-h100")
    for rows, text in (
        ([], "no row"),
        ([row, other], "one kind"),
        ([many], "16 ranks"),
    ):
        with pytest.raises(InputError, match=text):
            calibrate.calibrate(rows)
