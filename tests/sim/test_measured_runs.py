"""Measured steps found by what was run, and the errors of those that are like it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lab.report import measured_runs as make
from prestep import cli
from prestep.sim.exporters import html
from prestep.sim.record import measured_runs as measured
from prestep.sim.record.identity import key_of, kind_of
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from tests.sample import together
from tests.sim.synthetic import result

EXAMPLES = Path(cli.__file__).parent / "examples"
BASE = {
    "cluster": {"name": "h200-host-4"},
    "model": {"name": "llama3-1b-plain"},
    "training": {"seq_len": 2048, "micro_batch": 2, "global_batch": 8},
    "parallel": {"dp": 4, "data_parallel": "ddp", "bucket_cap": "25 MiB"},
}


def scenario(**changed: dict[str, object]) -> Scenario:
    return parse_scenario(
        {
            name: {**BASE.get(name, {}), **changed.get(name, {})}
            for name in {**BASE, **changed}
        },
        "s",
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": {"gpus": 4}},
        {"training": {"warmup": 9}},
        {"parallel": {"schedule": "gpipe"}},
        {"parallel": {"reshard_after_forward": False}},
        {"measured": {"step_time": "1 s"}},
        {"megatron": {"bias_fusion": False}},
        {"model": {"hidden": 2048}},
    ],
)
def test_what_changes_no_step_changes_no_key(
    changed: dict[str, dict[str, object]],
) -> None:
    """Defaults written out, switches of what is not there, and what a file is called are the same run."""
    assert key_of(scenario(**changed)) == key_of(scenario())


@pytest.mark.parametrize("outside", [{"reshard_root": True}, {"root_groups": "split"}])
def test_groups_outside_the_blocks_make_another_run(outside: dict[str, object]) -> None:
    """Under FSDP they change gathers; without it they are keys of what is not there."""
    sharded = {"data_parallel": "fsdp"}
    assert key_of(scenario(parallel=sharded)) != key_of(
        scenario(parallel=sharded | outside)
    )
    assert key_of(scenario(parallel=outside)) == key_of(scenario())


@together(
    "changed",
    [
        {"cluster": {"name": "dgx-h200", "gpus": 4}},
        {"training": {"micro_batch": 1}},
        {"training": {"seq_len": 1024}},
        {"training": {"recompute": "full"}},
        {"parallel": {"bucket_cap": "5 MiB"}},
        {"nccl": {"max_channels": 4}},
        {"cluster": {"set": {"nvlink.bandwidth": "2x"}}},
        {"parallel": {"data_parallel": "fsdp"}},
        {"model": {"layers": 8}},
        {"pytorch": {"loss": "fused"}},
    ],
)
def test_what_changes_the_step_changes_the_key(
    changed: dict[str, dict[str, object]],
) -> None:
    """Two runs that may take different times are not the same."""
    assert key_of(scenario(**changed)) != key_of(scenario())


def test_a_batch_said_in_another_way_is_the_same_run() -> None:
    """Steps accumulated and the global batch are one thing."""
    said = {"training": {"seq_len": 2048, "micro_batch": 2, "grad_accumulation": 2}}
    assert key_of(parse_scenario({**BASE, **said}, "s")) == key_of(
        scenario(training={"global_batch": 16})
    )


def test_a_bundled_scenario_finds_its_measurement() -> None:
    """With its set, its measured time, the error of this prediction, and whether constants were fitted to it."""
    found = measured.lookup(scenario(), 0.1)
    assert found is not None
    case = next(case for case in found["cases"] if case["row"] == "1b-ddp4-b2")
    assert (
        case["set"] == "h200"
        and case["measured"] == pytest.approx(0.083, rel=0.01)
        and case["fitted"]
    )
    assert case["error"] == pytest.approx(0.1 / case["measured"] - 1)
    assert not {c["row"] for c in found["cases"]} & {
        n["row"] for n in found["neighbours"]
    }


def test_a_run_that_nobody_measured_has_neighbours() -> None:
    """The nearest others, with what differs."""
    found = measured.lookup(load_scenario(EXAMPLES / "superpod-fsdp.toml"), 0.4)
    assert (
        found is not None
        and not found["cases"]
        and len(found["neighbours"]) == measured.NEAREST
    )
    assert all(n["differs"] for n in found["neighbours"])


def test_distance_is_symmetric_and_zero_for_the_same() -> None:
    """And grows with what differs."""
    one, other = kind_of(scenario()), kind_of(scenario(training={"seq_len": 8192}))
    far = kind_of(load_scenario(EXAMPLES / "nvl72-superpod.toml"))
    assert (
        measured.distance(one, one)
        == 0
        < measured.distance(one, other)
        == measured.distance(other, one)
    )
    assert measured.distance(one, other) < measured.distance(one, far)
    assert "sequence" in measured.differences(
        one, other
    ) and "gb200" in measured.differences(one, far)


def test_the_index_has_the_sets_as_they_are() -> None:
    """Every row of a small set is there under the key of its scenario (all sets: python -m lab.report.measured_runs)."""
    listed = {(case.set, case.row): case for case in measured.measured_runs()}
    for case in make._steps("h200-whatif"):
        mine = listed[case.set, case.row]
        assert mine.key == case.key and mine.measured == pytest.approx(
            case.measured, rel=1e-5
        )
        assert mine.fitted == case.fitted and mine.kind == case.kind
    assert sum(case.set == "published" for case in measured.measured_runs()) > 1000
    assert all(
        case.measured > 0 and (math.isnan(case.predicted) or case.predicted > 0)
        for case in measured.measured_runs()
    )


def test_reports_give_the_predictions(tmp_path: Path) -> None:
    """`validate --json` of one or several sets; what has none in them keeps the old one; text and index agree."""
    case = measured.measured_runs()[0]
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps([{"set": case.set, "cases": [{"id": case.row, "predicted": 1.5}]}]),
        encoding="utf-8",
    )
    made = make.predictions([path])
    assert made == {(case.set, case.row): 1.5}
    head, line = make.text_of([case], made).splitlines()
    assert (
        head.split(",")[:5] == ["key", "set", "row", "measured", "predicted"]
        and line.split(",")[4] == "1.5"
    )


def test_the_report_shows_what_is_known() -> None:
    """The measurement with its error and role; without a case it says so."""
    told = measured.lookup(scenario(), 0.1)
    page = html.render(result(measured=None), known=told)
    assert (
        "1b-ddp4-b2" in page
        and "constants were fitted to it" in page
        and "this prediction" in page
    )
    none = measured.lookup(load_scenario(EXAMPLES / "superpod-fsdp.toml"), 0.4)
    page = html.render(result(measured=None), known=none)
    assert (
        "Nobody has measured this very run" in page and "nearest measured steps" in page
    )
