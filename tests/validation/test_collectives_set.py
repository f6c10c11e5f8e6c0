"""Measured collectives are predicted by the ordinary path; sets of them have limits, held-out sizes and a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab import CASES
from lab.formats import leafspine
from lab.sets.collectives import validate_set
from lab.sets.step_sets import load_set
from prestep import cli
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.validation.sets import predict_collective
from prestep.validation.sets.sets import kind_of, set_names, validate
from tests.conftest import ReportOf
from tests.validation.collective_cases import failed, line
from tests.validation.lines import written


def test_a_row_is_predicted_by_the_ordinary_path(tmp_path: Path) -> None:
    """The figure in the report is that of plan_collective on the row's cluster with the settings of its label."""
    env = {
        "label": "ch4",
        "ranks": 4,
        "kind": "env",
        "nccl": "2.28.9",
        "env": {"NCCL_MAX_NCHANNELS": "4"},
    }
    made = validate_set("collectives", written(tmp_path, env, line(label="ch4")))
    fabric = load_cluster("h200-host-4")
    plan = plan_collective(
        "all_reduce", 2**23, fabric.gpus, fabric, Nccl(max_channels=4)
    )
    (only,) = made.cases
    assert only.prediction.time == plan.duration(fabric.links.bandwidth)
    assert (only.slice, only.prediction.channels) == ("channel-limited", 4)


def test_a_time_of_the_host_is_not_compared(tmp_path: Path) -> None:
    """Small rows without a CUDA graph time the launches: they are skipped with the reason, and do not pass alone."""
    path = written(tmp_path, line(bytes=1024), line(bytes=2048, graph_s=1e-5))
    made = validate_set("collectives", path)
    assert [skip.name for skip in made.skips] == ["default/all_reduce/n4/1024"]
    assert [one.measured for one in made.cases] == [1e-5]
    assert "no rows" in failed(
        validate_set("collectives", written(tmp_path, line(bytes=1024)))
    )


def test_every_second_size_is_held_out(report_of: ReportOf) -> None:
    """Constants saw the first, third, ... size of each series of the files they were fitted to; the report says which."""
    made = report_of("collectives")
    sizes = {(one.ranks, one.op): [] for one in made.cases}  # type: ignore[var-annotated]
    for one in made.cases:
        if one.name.startswith("Tree-LL/"):
            sizes[one.ranks, one.op].append(one.fitted)
    assert sizes[4, "all_reduce"] == [True, False] * 7
    again = validate_set("collectives", CASES / "h200" / "collectives_2gpu.jsonl")
    assert {one.name for one in again.cases if one.fitted} == {
        one.name
        for one in made.cases
        if one.fitted and one.ranks == 2 and not one.name.startswith("ch")
    }


def test_named_cases_are_fitted(report_of: ReportOf) -> None:
    """A set may name further cases that a constant was taken from, by patterns."""
    fitted = {
        one.name for one in report_of("collectives-leafspine").cases if one.fitted
    }
    assert len(fitted) == 48 and all("spine16/" in name for name in fitted)
    assert not any(
        "reduce_scatter" in name
        or "all_to_all" in name
        or "2x2-nic16-spine16/sendrecv" in name
        for name in fitted
    )


def test_no_unseen_row_is_fitted(report_of: ReportOf) -> None:
    """The rows that show how good predictions of other sizes are touch no constant, and all of them are compared."""
    made = report_of("collectives-unseen")
    assert len(made.cases) == 199 and not made.skips and not made.unpredicted
    assert not any(one.fitted for one in made.cases)


def test_the_bundled_slices(report_of: ReportOf) -> None:
    """Every slice that has a limit has rows; only the waits beside large kernels are known to be outside."""
    made = report_of("collectives")
    forced = {
        f"{algo}-{proto}"
        for algo in ("Ring", "Tree")
        for proto in ("LL", "LL128", "Simple")
    }
    slices = {
        "default, 1 MiB and more",
        "default, below 1 MiB",
        "channel-limited",
        "overlap: kernels",
    }
    assert set(made.slices) == forced | slices | {"overlap: collectives"}
    assert not failed(made)
    assert not failed(report_of("collectives-unseen"))


def test_a_crash_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in one row fails the gate and hides nothing."""

    def plan(*_: Any, **__: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(predict_collective, "plan_collective", plan)
    made = validate_set("collectives", written(tmp_path, line()))
    assert [one.prediction.error for one in made.cases] == ["KeyError: 'x'"]
    assert not made.passed


def test_emulated_networks(tmp_path: Path) -> None:
    """A label such as 4x1-nic16-spine8 is a cluster: its narrowest link bounds what crosses it, sockets need no graph."""
    label = "4x1-nic16-spine8"
    env = {
        "label": label,
        "kind": "env",
        "env": {"NCCL_NET": "Socket", "NCCL_HOSTID": "n0"},
    }
    path = written(
        tmp_path,
        env,
        line(label=label, bytes=2**30),
        line(label=label, bytes=1024, op="all_gather"),
    )
    made = validate_set("collectives-leafspine", path)
    assert [one.slice for one in made.cases] == [
        "leaf-spine, 1 MiB and more",
        "leaf-spine, below 1 MiB",
    ]
    bound = 1.5 * 2**30 / (0.124e9 * 8)
    assert bound <= made.cases[0].prediction.time < 1.1 * bound
    wide = validate_set(
        "collectives-leafspine",
        written(tmp_path, line(label="4x1-nic16-spine16", bytes=2**30)),
    )
    assert wide.cases[0].prediction.time == pytest.approx(
        made.cases[0].prediction.time / 2, rel=0.05
    )
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(InputError, match="4x1"):
        leafspine.network_of("4x0-nic16-spine8")


def test_sets_of_both_kinds_are_one_interface(report_of: ReportOf) -> None:
    """A set's kind decides how it is compared; names of both are listed; the wrong kind is refused where steps are meant."""
    assert {"collectives", "collectives-unseen", "collectives-in-place"} <= set(
        set_names("collectives")
    )
    kinds = (
        "steps",
        "changes",
        "collectives",
        "choices",
        "published",
        "published_collectives",
        "traces",
        "checkpoint",
        "probes",
        "programs",
        "kernels",
        "energy",
        "wall",
        "doctor",
        "stragglers",
        "schedules",
        "exchanges",
        "table",
        "rl",
    )
    assert set(set_names()) == {name for kind in kinds for name in set_names(kind)}
    assert kind_of("h200") == "steps"
    assert report_of("collectives-unseen").name == "collectives-unseen"
    with pytest.raises(InputError, match="h200"):
        load_set("collectives")
    with pytest.raises(InputError, match="collectives"):
        validate("colectives")


@pytest.mark.usefixtures("known_reports")
def test_the_command(tmp_path: Path) -> None:
    """Several sets in one go; exit 1 outside tolerance, 2 for wrong input."""
    good = written(tmp_path, line(s=4.8e-5, bytes=2**22 + 4))
    run = CliRunner().invoke
    made = run(
        cli.main, ["validate", "collectives-unseen", "collectives-in-place", "--json"]
    )
    assert [one["set"] for one in json.loads(made.stdout)] == [
        "collectives-unseen",
        "collectives-in-place",
    ]
    assert run(cli.main, ["validate", "collectives-unseen"]).exit_code == 0
    assert (
        run(
            cli.main,
            ["validate", "collectives", "--rows", str(written(tmp_path, line(s=1.0)))],
        ).exit_code
        == 1
    )
    both = run(cli.main, ["validate", "collectives", "h200", "--rows", str(good)])
    assert both.exit_code == 2 and "--rows" in both.output
    assert (
        run(
            cli.main, ["validate", "collectives", "--rows", str(tmp_path / "none")]
        ).exit_code
        == 2
    )


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    """A file without any row is wrong input, not a set that passes."""
    with pytest.raises(InputError, match="no row"):
        validate_set("collectives", written(tmp_path))
