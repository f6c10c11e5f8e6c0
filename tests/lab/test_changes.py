"""Rows against the same step without their change, and jobs that ran together (`kind = "changes"`)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab import CASES
from lab.formats.leafspine import GOODPUT, cluster_of
from lab.formats.shared_jobs import JobRow, paired, scenario_of
from lab.sets import steps
from lab.sets.changes import validate_set
from lab.sets.ratios import base_of, by_step
from lab.sets.step_sets import load_set
from prestep.cli import main
from prestep.sim.errors import InputError
from prestep.sim.spec.sections import Scenario
from tests.sample import together
from tests.sim.synthetic import result

RATES = re.compile(r"(?:\d+x\d+-)?nic.*")
CASE = {"model": "seedmlp_512", "mode": "ddp", "mbs": 4}


def row(label: str, world: int = 4, **case: Any) -> JobRow:
    return JobRow(
        "a",
        f"rows.jsonl:{label}",
        CASE | case,
        world,
        label,
        cluster=cluster_of(rates[0]) if (rates := RATES.findall(label)) else {},
        steps={0: (1.0,)},
        peak_memory={0: 1e9},
    )


@together(
    ("label", "others", "base"),
    [
        (
            "4x1-nic16-spine8",
            ["4x1-nic32-spine32", "4x1-nic16-spine16"],
            "4x1-nic16-spine16",
        ),
        (
            "4x1-nic8-spine4",
            ["4x1-nic16-spine16", "4x1-nic8-spine8"],
            "4x1-nic8-spine8",
        ),
        (
            "4x1-nic8-spine8",
            ["4x1-nic16-spine16", "2x2-nic16-spine16"],
            "4x1-nic16-spine16",
        ),
        (
            "4x1-nic16-spine16-n3nic4",
            ["4x1-nic16-spine8", "4x1-nic16-spine16"],
            "4x1-nic16-spine16",
        ),
        (
            "4x1-nic16-spine8-n3nic4",
            ["4x1-nic16-spine8", "4x1-nic16-spine16"],
            "4x1-nic16-spine8",
        ),
        (
            "shared-n1n3-nic16-spine16",
            ["4x1-nic16-spine16", "alone-n0n2-nic16-spine16"],
            "alone-n0n2-nic16-spine16",
        ),
        (
            "alone-n0n2-nic16-spine8",
            ["alone-n0n2-nic16-spine16"],
            "alone-n0n2-nic16-spine16",
        ),
        ("ch1", ["ch4", "ch2"], "ch4"),
        ("ch1", ["ch4", "default"], "default"),
        ("4x1-nic16-spine16", ["4x1-nic16-spine8", "2x2-nic16-spine16"], None),
        ("shared-n0n2-nic16-spine16", ["alone-n0n2-nic16-spine8"], None),
        ("default", ["ch1"], None),
    ],
)
def test_the_base_of_a_row(label: str, others: list[str], base: str | None) -> None:
    """The same step at full rates, without the slow port, alone, with all channels; none for what is a base itself."""
    mine = row(label)
    found = base_of(mine, by_step([*map(row, others), mine]))
    assert (found.label if found else None) == base


def test_a_slow_rank_is_compared_with_none() -> None:
    """The same case without it, whatever the id says; another model is no base."""
    slow = replace(row("default", slow={"rank": 1, "cycles": 5}), id="a-slow1")
    rows = [row("default", mbs=8), slow, row("ch1"), row("default")]
    assert base_of(slow, by_step(rows)) == row("default")
    others = [row("default", world=2), row("default", model="llama1b")]
    assert base_of(slow, by_step(others)) is None


def test_many_rows_of_one_step_are_not_compared_with_each_other() -> None:
    """Of a thousand repeats two are kept: one base, and another where the first one asks."""
    repeats = [replace(row("ch4"), id=str(n)) for n in range(1000)]
    kept = by_step([*repeats, row("ch1")])
    assert [len(rows) for rows in kept.values()] == [3]
    assert base_of(row("ch1"), kept) is repeats[0]


def test_jobs_of_one_run_know_each_other() -> None:
    """Hosts and rates are in the label; of several runs the first rows belong together, then the second ones."""
    first, second = (
        row("shared-n0n2-nic16-spine16", 2),
        row("shared-n1n3-nic16-spine16", 2),
    )
    third, fourth = replace(first, id="b"), replace(second, id="c")
    other = row("shared-n1n3-nic16-spine8", 2)
    made = paired(
        [first, third, second, fourth, other, row("alone-n0n2-nic16-spine16", 2)]
    )
    assert [[job.id for job in one.beside] for one in made] == [
        ["a"],
        ["c"],
        ["a"],
        ["b"],
        [],
        [],
    ]
    assert made[0].beside[0].label == second.label


def test_two_jobs_become_one_scenario() -> None:
    """Each on its hosts, on one cluster with the rates of the label."""
    mine, _ = paired(
        [row("shared-n0n2-nic16-spine8", 2), row("shared-n1n3-nic16-spine8", 2)]
    )
    scenario = scenario_of(mine)
    assert [job.placement.hosts for job in scenario.jobs] == [
        ("host0", "host2"),
        ("host1", "host3"),
    ]
    assert scenario.cluster.set["spine.bandwidth"] == f"{8 * GOODPUT:.4g} GB/s"


def test_a_job_whose_partner_is_missing_is_not_predicted_as_if_alone() -> None:
    """An error that says what is missing."""
    with pytest.raises(InputError, match="rows of the jobs on the other hosts"):
        scenario_of(row("shared-n0n2-nic16-spine16", 2))


@pytest.mark.parametrize(
    "label", ["4x1-nic16-spine8-foo", "4x4-nic16-spine16", "nic16-spineX16-spine2"]
)
def test_a_label_that_looks_like_a_cluster_and_is_none_is_refused(label: str) -> None:
    """Never predicted as one ordinary host."""
    with pytest.raises(InputError, match="label"):
        cluster_of(label)


@pytest.mark.parametrize(
    ("label", "world", "changes"),
    [
        ("4x1-nic12.5-spine5", 4, {"nic.bandwidth": 12.5, "spine.bandwidth": 5}),
        (
            "4x1-nic16-spine16-n0nic4-n3nic2",
            4,
            {"nic[host0].bandwidth": 4, "nic[host3].bandwidth": 2},
        ),
        ("2x1-nic16-spine16", 2, {}),
        ("4x1-nic16-spine16", 2, {}),
    ],
)
def test_other_rates_ports_and_sizes(
    label: str, world: int, changes: dict[str, float]
) -> None:
    """Rates may be broken numbers, several ports slow, hosts fewer."""
    cluster = scenario_of(row(label, world)).cluster
    assert {
        key: f"{rate * GOODPUT:.4g} GB/s" for key, rate in changes.items()
    }.items() <= cluster.set.items()
    assert (cluster.hosts or 4) == int(label[0]) and (
        cluster.gpus or int(label[0])
    ) == world


def steady(scenario: Scenario) -> Any:
    return replace(result(), step_time=1.0)


def test_ratios_are_judged(tmp_path: Path) -> None:
    """A spine of half the rate that slowed nothing, although it was measured to double the step, fails the gate."""
    records = [
        {
            "id": "a",
            "label": label,
            "cluster": cluster_of(label),
            "world": 4,
            "case": CASE,
            "step_s_by_rank": {"0": [time, time]},
        }
        for label, time in (("4x1-nic16-spine16", 1.0), ("4x1-nic16-spine8", 2.0))
    ]
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(map(json.dumps, records)), encoding="utf-8"
    )
    report = validate_set("leafspine", rows=tmp_path / "rows.jsonl", predict=steady)
    (check,) = [check for check in report.checks if check.name.startswith("ratio")]
    assert check.value == pytest.approx(0.5) and not check.passed
    told = report.to_json()["cases"][1]
    assert (told["base"], told["measured_ratio"]) == ("a@4x1-nic16-spine16", 2.0)
    assert (told["predicted_ratio"], told["ratio_error"]) == (1.0, pytest.approx(-0.5))
    assert "ratio" not in "".join(
        check.name
        for check in steps.validate_set("h200-straggler", predict=steady).checks
    )


def test_bases_come_from_the_set_where_the_file_has_none() -> None:
    """A file of slow ranks alone is compared with the bundled steps without one."""
    report = validate_set(
        "leafspine", rows=CASES / "h200" / "straggler_4gpu.jsonl", predict=steady
    )
    assert [case.base.row.id for case in report.cases if case.base] == [
        case.row.id.removesuffix("-slow3") for case in report.cases
    ]


def test_two_jobs_on_the_command_line(tmp_path: Path) -> None:
    """`prestep validate leafspine --rows` predicts jobs beside each other."""
    labels = (
        "alone-n0n2-nic16-spine16",
        "shared-n0n2-nic16-spine16",
        "shared-n1n3-nic16-spine16",
    )
    records = [
        {
            "id": "a",
            "label": label,
            "cluster": cluster_of("4x1-nic16-spine16"),
            "world": 2,
            "case": CASE | {"model": "seedmlp_2048"},
            "step_s_by_rank": {"0": [1.0]},
        }
        for label in labels
    ]
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(map(json.dumps, records)), encoding="utf-8"
    )
    done = CliRunner().invoke(
        main,
        [
            "validate",
            "leafspine",
            "--rows",
            str(tmp_path / "rows.jsonl"),
            "--json",
            "--jobs",
            "1",
        ],
    )
    alone, *shared = json.loads(done.stdout)["cases"]
    assert all(case["predicted"] > 1.2 * alone["predicted"] for case in shared)
    assert all(case["predicted_ratio"] > 1.2 and not case["error"] for case in shared)


def test_the_set_of_changes_has_limits_of_its_own() -> None:
    """7 % in the mean over every kind of change, 4 % on each ratio to the step without it; else as agreed."""
    report = validate_set("leafspine", predict=steady)
    usual = load_set("h200").tolerances
    assert report.tolerances == replace(usual, step_mape=0.07)
    assert report.ratio_worst == 0.04
    assert {case.row.where.partition(":")[0] for case in report.cases} == {
        "leafspine_4gpu.jsonl",
        "leafspine_hybrid_4gpu.jsonl",
        "leafspine_degraded_4gpu.jsonl",
        "leafspine_two_jobs.jsonl",
        "whatif_channels_4gpu.jsonl",
        "straggler_4gpu.jsonl",
    }
