"""Measured collectives are read strictly, predicted by the ordinary path, and judged slice by slice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import cli
from sim.collectives.planner import plan_collective
from sim.errors import InputError
from sim.spec.sections import Nccl
from tests.conftest import ReportOf
from tests.validation.lines import written
from topologies import load_cluster
from validation import command
from validation.formats import collective_rows, leafspine
from validation.formats.collective_reader import read_lines
from validation.formats.nccl_env import Unpredictable, settings_of
from validation.report import report as writers
from validation.report.collectives import Case, CollectiveReport, Limits
from validation.sets import predict_collective
from validation.sets.collectives import validate_set
from validation.sets.predict_collective import Prediction
from validation.sets.sets import CASES, kind_of, load_set, set_names, validate

LIMITS = Limits(
    {
        "default, 1 MiB and more": {"mean": 0.05},
        "*, 1 MiB and more": {"median": 0.1, "p90": 0.25},
    }
)


def line(**changes: Any) -> dict[str, Any]:
    told = {
        "label": "default",
        "ranks": 4,
        "kind": "collective",
        "op": "all_reduce",
        "bytes": 2**23,
        "s": 5e-5,
    }
    return {key: value for key, value in (told | changes).items() if value is not None}


def case(
    error: float,
    slice_: str = "default, 1 MiB and more",
    fitted: bool = False,
    name: str = "a",
) -> Case:
    return Case(
        name,
        "f:1",
        slice_,
        "all_reduce",
        4,
        2**20,
        1.0,
        Prediction(1.0 + error, "ring", "LL", 1),
        fitted,
    )


def report(*cases: Case) -> CollectiveReport:
    return CollectiveReport("x", "", cases, LIMITS)


def failed(made: CollectiveReport) -> set[str]:
    return {check.name for check in made.checks if not check.passed}


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


def test_an_environment_holds_for_the_lines_after_it(tmp_path: Path) -> None:
    """Lines of a label before its env line run by the label; those after it by the variables."""
    env = {
        "label": "odd",
        "kind": "env",
        "env": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"},
    }
    rows, _ = read_lines(
        written(
            tmp_path, line(label="odd"), env, line(label="odd"), line(label="Ring-LL")
        )
    )
    assert [row.series for row in rows] == [
        "default, 1 MiB and more",
        "Tree-LL128",
        "Ring-LL",
    ]
    assert rows[1].name == "odd/all_reduce/n4/8388608#2"


@pytest.mark.parametrize(
    ("bad", "key"),
    [
        (line(op="all_redcue"), "op"),
        (line(op=None), "op"),
        (line(ranks=1), "ranks"),
        (line(ranks="4"), "ranks"),
        (line(bytes=0), "bytes"),
        (line(s=0.0), "s"),
        (line(s=None), "s"),
        (line(s=float("nan")), "s"),
        (line(graph_s=-1.0), "graph_s"),
        (line(kind="colective"), "kind"),
        ({"label": "default", "kind": "env", "env": [1]}, "env"),
        (
            {
                "label": "default",
                "kind": "overlap",
                "op": "all_reduce",
                "compute": "gemm",
            },
            "compute",
        ),
        ([1], ""),
    ],
)
def test_every_bad_line_is_named(tmp_path: Path, bad: Any, key: str) -> None:
    """A line that is wrong is a mistake with file, line, key, what was found and what was expected."""
    with pytest.raises(InputError) as error:
        read_lines(written(tmp_path, line(), bad))
    (mistake,) = error.value.mistakes
    assert (mistake.where, mistake.key) == ("rows.jsonl:2", key)
    assert mistake.found and mistake.expected


def test_all_bad_lines_are_named_together(tmp_path: Path) -> None:
    """One report names every mistake, a broken line too."""
    path = written(tmp_path, line(op="x"), line(bytes=-1))
    path.write_text(path.read_text() + "\n{")
    with pytest.raises(InputError) as error:
        read_lines(path)
    assert [mistake.where for mistake in error.value.mistakes] == [
        "rows.jsonl:1",
        "rows.jsonl:2",
        "rows.jsonl:3",
    ]


def test_a_time_of_the_host_is_not_compared(tmp_path: Path) -> None:
    """Small rows without a CUDA graph time the launches: they are skipped with the reason, and do not pass alone."""
    path = written(tmp_path, line(bytes=1024), line(bytes=2048, graph_s=1e-5))
    made = validate_set("collectives", path)
    assert [skip.name for skip in made.skips] == ["default/all_reduce/n4/1024"]
    assert [one.measured for one in made.cases] == [1e-5]
    assert "no rows" in failed(
        validate_set("collectives", written(tmp_path, line(bytes=1024)))
    )


def test_a_variant_in_place_is_the_operation(tmp_path: Path) -> None:
    """`_inplace` and one-way sends are operations of NCCL under other names; the other ranks stay in the group."""
    rows, _ = read_lines(
        written(
            tmp_path,
            line(op="all_gather_inplace"),
            line(op="send_0_last"),
            line(op="send_0_1"),
        )
    )
    gpus = ["a", "b", "c", "d"]
    assert collective_rows.members(rows[0], gpus) == ("all_gather", gpus)
    assert collective_rows.members(rows[1], gpus) == ("send", ["a", "d", "b", "c"])
    assert collective_rows.members(rows[2], gpus) == ("send", gpus)


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


def test_limits_are_those_agreed() -> None:
    """Default 5 % and 10 %, forced 10 %, fewer channels 7 %, overlap 10 %, leaf-spine 7 %; other machines 10 and 25 %."""
    mine, others = (
        Limits.read(CASES / name / "limits.toml")
        for name in ("collectives", "published-collectives")
    )
    found = {
        name: mine.of(name)["mean"]
        for name in (
            "default, 1 MiB and more",
            "default, below 1 MiB",
            "Tree-LL128",
            "channel-limited",
            "overlap: kernels",
            "leaf-spine, below 1 MiB",
        )
    }
    assert list(found.values()) == [0.05, 0.10, 0.10, 0.07, 0.10, 0.07]
    assert others.of("aws-p5, 1 MiB and more") == {"median": 0.10, "p90": 0.25}
    assert not others.of("aws-p5, below 1 MiB")


def test_a_slice_past_its_limit_fails() -> None:
    """A mean past the limit fails that slice; the held-out part is held to it by itself."""
    assert report(case(0.04), case(-0.05)).passed
    assert failed(report(case(0.06))) == {"default, 1 MiB and more: mean"}
    mixed = report(case(0.07), case(0.0, fitted=True))
    assert failed(mixed) == {"default, 1 MiB and more, held out: mean"}


def test_other_machines_are_judged_by_median_and_p90() -> None:
    """One bad row in ten does not matter, two do; rows that were fitted do not count."""
    rest = [case(0.01, "m, 1 MiB and more")] * 8
    bad = case(0.5, "m, 1 MiB and more")
    assert report(*rest, rest[0], bad).passed
    assert failed(report(*rest, bad, bad)) == {"m, 1 MiB and more: p90"}
    assert report(*rest, *[replace(bad, fitted=True)] * 9).passed


def test_nan_and_missing_predictions_fail() -> None:
    """What is not a number, or was not predicted, passes no gate."""
    assert "default, 1 MiB and more: mean" in failed(report(case(float("nan"))))
    gone = replace(case(0.0), prediction=Prediction(error="stuck"))
    assert failed(report(case(0.0), gone)) == {"rows not predicted"}


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


@pytest.mark.parametrize(
    ("env", "op", "expected"),
    [
        (
            {"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "LL"},
            "all_reduce",
            Nccl(algo="ring", proto="LL"),
        ),
        ({"NCCL_ALGO": "allreduce:Ring"}, "all_gather", Nccl()),
        (
            {"NCCL_ALGO": "allreduce:tree;allgather:ring"},
            "all_gather",
            Nccl(algo="ring"),
        ),
        (
            {"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "8"},
            "send",
            Nccl(min_channels=2, max_channels=8),
        ),
        ({"NCCL_NVLS_ENABLE": "0"}, "all_reduce", Nccl(nvls=False)),
        ({"NCCL_NVLS_ENABLE": "2"}, "all_reduce", Nccl()),
        (
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"},
            "all_reduce",
            Nccl(p2p_disable=True),
        ),
        ({"NCCL_BUFFSIZE": "8388608"}, "all_reduce", Nccl(buffer_size=2.0**23)),
    ],
)
def test_variables_become_settings(
    env: dict[str, str], op: str, expected: Nccl
) -> None:
    """NCCL's variables are the keys of [nccl]; a list for one collective leaves the others alone."""
    assert settings_of(env, op, None, "f:1") == (expected, ())


def test_variables_that_are_wrong_or_unknown() -> None:
    """A value NCCL does not have is an input error, a variable without effect here is named, a choice is refused."""
    with pytest.raises(InputError, match="NCCL_MAX_NCHANNELS"):
        settings_of({"NCCL_MAX_NCHANNELS": "many"}, "all_reduce", None, "f:1")
    with pytest.raises(InputError, match="NCCL_ALGO"):
        settings_of({"NCCL_ALGO": "Rnig"}, "all_reduce", None, "f:1")
    assert settings_of(
        {"NCCL_NTHREADS": "256", "NCCL_DEBUG": "INFO"}, "all_reduce", None, "f:1"
    )[1] == ("NCCL_NTHREADS=256",)
    for env in (
        {"NCCL_ALGO": "Ring,Tree"},
        {"NCCL_PROTO": "^LL"},
        {"NCCL_HOSTID": "n0"},
    ):
        with pytest.raises(Unpredictable):
            settings_of(env, "all_reduce", None, "f:1")


def test_pretended_hosts(tmp_path: Path) -> None:
    """NCCL_HOSTID needs to know how many ranks share a host: FAKE_NODES or a label such as 2x2 says it."""
    named = {"label": "a", "kind": "env", "env": {"NCCL_HOSTID": "node0"}}
    fake = {
        "label": "b",
        "kind": "env",
        "env": {"NCCL_HOSTID": "node0", "FAKE_NODES": "2"},
    }
    label = {"label": "4x1", "kind": "env", "env": {"NCCL_HOSTID": "n0"}}
    rows, _ = read_lines(
        written(
            tmp_path,
            named,
            fake,
            label,
            *(line(label=name) for name in ("a", "b", "4x1")),
        )
    )
    assert "NCCL_HOSTID" in rows[0].skip
    assert [row.wanted.hostid for row in rows[1:]] == [2, 1]
    assert rows[1].series == "other settings"


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
        leafspine.build("4x0-nic16-spine8")


def test_sets_of_both_kinds_are_one_interface(report_of: ReportOf) -> None:
    """A set's kind decides how it is compared; names of both are listed; the wrong kind is refused where steps are meant."""
    assert {"collectives", "collectives-unseen", "published-collectives"} <= set(
        set_names("collectives")
    )
    kinds = (
        "steps",
        "collectives",
        "choices",
        "published",
        "traces",
        "checkpoint",
        "probes",
        "programs",
    )
    assert set(set_names()) == {name for kind in kinds for name in set_names(kind)}
    assert kind_of("h200") == "steps"
    assert report_of("collectives-unseen").name == "collectives-unseen"
    with pytest.raises(InputError, match="h200"):
        load_set("collectives")
    with pytest.raises(InputError, match="collectives"):
        validate("colectives")


def test_writers(tmp_path: Path) -> None:
    """Every format is written, and says what failed; several sets are several suites."""
    made = replace(report(case(0.5, name="far"), case(0.01)), skips=())
    paths = {name: tmp_path / name for name in ("markdown", "junit", "plot")}
    command.write([made], lambda _: None, **paths)
    assert all(path.stat().st_size > 500 for path in paths.values())
    assert ElementTree.parse(tmp_path / "junit").getroot().get("failures") == str(
        len(failed(made))
    )
    for text in (writers.markdown(made), writers.terminal(made)):
        assert "far" in text and "FAILED" in text
    writers.write_junit([made, made], tmp_path / "both")
    assert len(ElementTree.parse(tmp_path / "both").getroot().findall("testsuite")) == 2


def test_json_keys() -> None:
    """Scripts find the keys of the case and of the set."""
    made = json.loads(
        json.dumps(
            report(
                case(0.1), replace(case(0.0), prediction=Prediction(error="x"))
            ).to_json()
        )
    )
    assert {
        "n",
        "mape",
        "worst",
        "bias",
        "slices",
        "cases",
        "passed",
        "skipped_by_reason",
    } <= made.keys()
    assert {
        "id",
        "measured",
        "predicted",
        "signed_error",
        "slice",
        "algo",
        "proto",
    } <= made["cases"][0].keys()
    assert made["cases"][1]["predicted"] is None


@pytest.mark.usefixtures("known_reports")
def test_the_command(tmp_path: Path) -> None:
    """Several sets in one go; exit 1 outside tolerance, 2 for wrong input."""
    good = written(tmp_path, line(s=4.8e-5, bytes=2**22 + 4))
    run = CliRunner().invoke
    made = run(
        cli.main, ["validate", "collectives-unseen", "published-collectives", "--json"]
    )
    assert [one["set"] for one in json.loads(made.stdout)] == [
        "collectives-unseen",
        "published-collectives",
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
