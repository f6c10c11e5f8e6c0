"""Rows of MLPerf's submissions: what their scripts say, and how they are judged."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from lab import CASES
from lab.formats import mlperf_scripts
from lab.formats.mlperf_scripts import CONFIGS, switches, variables_of
from lab.formats.published_setups import Setup
from lab.report import step_noise as report
from lab.report.published import Case
from lab.report.step_noise import StepNoise
from lab.sets import published, step_noise
from lab.sets.published import read, run_of
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.validation.sets.sets import kind_of, set_table
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.models.model import load_model

ROWS = read(CASES / "mlperf" / "rows.csv")
SCRIPTED = [row for row in ROWS if variables_of(row)]


def row_of(name: str, **cells: str) -> dict[str, str]:
    """A row of the set with other cells."""
    row = next(row for row in ROWS if row["id"] == name)
    return {**row, **cells}


def with_variable(text: str) -> Mapping[str, Mapping[str, object]]:
    """The scenario of a row on H100 whose notes repeat a variable with another value."""
    row = row_of("mlperf5-0015")
    return run_of({**row, "notes": f"{row['notes']}; {text}"}).scenario


def test_the_set_is_one_of_published_steps() -> None:
    """The importer of published rows serves MLPerf's: the same kind, the same columns, the same scenario."""
    assert kind_of("mlperf") == kind_of("published")
    assert ROWS[0].keys() == read(CASES / "published" / "rows.csv")[0].keys()


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row["id"])
def test_every_variable_of_a_script_is_known(row: dict[str, str]) -> None:
    """Every exported variable is a key of the scenario, is said not to be simulated, or does not matter."""
    for name in variables_of(row):
        assert any(switch.fits(name) for switch in switches()), name
    assert "unknown" not in run_of(row).notes


def test_every_script_of_the_file_is_known_but_for_other_machines() -> None:
    """So it is for systems whose rows are not here, unless they are AMD's, which are not simulated."""
    configs = json.loads(CONFIGS.read_text())
    names = {
        name
        for entry in configs.values()
        if "MI3" not in entry["config"]
        for name in entry["env"]
    }
    strange = [n for n in names if not any(switch.fits(n) for switch in switches())]
    assert not strange


def test_switches_are_keys_of_the_scenario() -> None:
    """What a script sets is what the scenario has, other switches of the same row unchanged."""
    scenario = with_variable("TP_COMM_OVERLAP=False")
    usual = run_of(row_of("mlperf5-0015")).scenario
    assert usual["megatron"]["tp_comm_overlap"] is True
    changed = {**usual["megatron"], "tp_comm_overlap": False}
    assert scenario == {**usual, "megatron": changed}


def test_whole_steps_in_a_graph_come_before_graphs_of_layers() -> None:
    """Of FULL_CUDA_GRAPH and MCORE_CUDA_GRAPH the whole step counts."""
    both = with_variable("MCORE_CUDA_GRAPH=1 FULL_CUDA_GRAPH=1")["megatron"]
    layers = with_variable("MCORE_CUDA_GRAPH=1 FULL_CUDA_GRAPH=0")["megatron"]
    assert both["cuda_graph_scope"] == ["full_iteration"]
    assert layers["cuda_graph_scope"] == ["attn", "mlp"]


def test_what_is_not_simulated_is_said() -> None:
    """A switch without a model is a note of the row; a variable that nobody knows is one too."""
    row = row_of("mlperf5-0002")
    assert "VBOOST_VALUE=1 not simulated" in run_of(row).notes
    strange = run_of({**row, "notes": row["notes"] + " NEW_SWITCH=7"})
    assert "NEW_SWITCH=7 unknown" in strange.notes


def test_a_value_that_a_switch_cannot_have_is_refused() -> None:
    """A truth that is none skips the row with the name of the switch."""
    with pytest.raises(InputError, match="TP_COMM_OVERLAP"):
        with_variable("TP_COMM_OVERLAP=perhaps")


def test_a_row_takes_the_script_that_it_names() -> None:
    """Another script of the same system says nothing, nor does one of a row that names none."""
    row = row_of("mlperf5-0015")
    other = row["notes"].replace("config_DGXH100_64x8x288", "config_DGXH100_9x8x9")
    repeated = set(variables_of({**row, "notes": other}))
    assert repeated < set(variables_of(row))
    assert not variables_of({**row, "notes": "config not identified"})


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row["id"])
def test_a_script_is_the_scenario_of_its_row(
    row: dict[str, str], tmp_path: Path
) -> None:
    """Read as a recipe it is the model, batch, layout and switches that the row is predicted with."""
    by_row = parse_scenario(run_of(row).scenario, "row")
    address = re.search(mlperf_scripts.SYSTEM, row["url_or_repo"])
    assert address is not None
    folder = tmp_path / address[4]
    folder.mkdir()
    path = folder / "config_of_the_row.sh"
    variables = variables_of(row)
    path.write_text("".join(f"export {k}={v}\n" for k, v in variables.items()))
    place = by_row.cluster
    stated = {"name": place.name, "hosts": place.hosts, "gpus": place.gpus}
    items = [f"cluster.{key}={value}" for key, value in stated.items() if value]
    script = load_scenario(path, (*items, "recipe.lenient=true"))
    if "FP8_RECIPE" not in variables:  # which the row's setup says for it
        scaling = by_row.megatron.fp8_scaling
        megatron = replace(script.megatron, fp8_scaling=scaling)
        script = replace(script, megatron=megatron)
    decided = mlperf_scripts.entry_of(row).get("program", {}).get("megatron", {})
    script = replace(script, megatron=replace(script.megatron, **decided))
    shapes = [replace(load_model(s.model), name="") for s in (by_row, script)]
    assert shapes[0] == shapes[1]
    assert microbatches_of(script) == microbatches_of(by_row)
    batch = {"global_batch": None, "microbatches": None}
    assert replace(script.training, **batch) == replace(by_row.training, **batch)
    for section in ("parallel", "megatron", "nccl"):
        assert getattr(script, section) == getattr(by_row, section), section


def test_rows_of_other_sources_have_no_script() -> None:
    """Published rows of other sources are what they were."""
    rows = read(CASES / "published" / "rows.csv")
    other = [row for row in rows if "MLPerf" not in row["source"]]
    assert not any(mlperf_scripts.variables_of(row) for row in other)


def test_a_submitters_rows_of_a_system_are_judged_or_fitted_together() -> None:
    """Half of the groups, of a round's submitter and GPU, may be fitted to; which ones is a checksum's choice."""
    table = set_table("mlperf")
    by_group: dict[str, set[bool]] = {}
    for row in SCRIPTED:
        run = run_of(row, table["group"])
        case = Case(run.id, "", run.group, 1, 1, part=table["part"])
        by_group.setdefault(case.group, set()).add(case.fitted)
    assert all(len(fitted) == 1 for fitted in by_group.values())
    assert {True, False} == set.union(*by_group.values())


def test_other_rows_are_judged_by_the_same_limits(tmp_path: Path) -> None:
    """`--rows` takes any file with these columns; errors come by model, GPU and size as well."""
    rows = [row_of("mlperf5-0044"), row_of("mlperf5-0021")]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    report = published.validate_set("mlperf", path)
    assert [case.name for case in report.cases] == ["mlperf5-0044"]
    assert [name for name, _ in report.skipped] == ["mlperf5-0021"]
    assert report.groups["hardware GB200"].n == report.groups["gpus 72"].n == 1
    assert report.limits.parent.name == "mlperf"


def test_the_noise_of_logged_steps() -> None:
    """Percentiles of a log are its spread; a row without them has none."""
    row = row_of("mlperf5-0041")
    assert step_noise.measured(row) == pytest.approx(0.0026, rel=0.05)
    assert step_noise.measured({**row, "notes": "derived"}) is None


def test_replicas_are_compared_with_logged_steps() -> None:
    """A row has the spread of its replicas beside that of its log, in tens of a percent both."""
    run = run_of(row_of("mlperf5-0041"))
    assert 0.002 < step_noise.predicted(run.scenario, run.id, 6) < 0.02


def test_only_rows_that_no_constant_was_taken_from_judge_the_noise() -> None:
    """The check is the typical ratio either way, of judged rows alone."""
    rows = [
        StepNoise("a", 8, 0.01, 0.005, False),
        StepNoise("b", 8, 0.01, 0.005, False),
        StepNoise("c", 8, 0.01, 0.01, True),
    ]
    assert report.check(rows, 0.5).value == pytest.approx(1.0)
    doubled = [StepNoise(r.name, 8, r.measured, 0.02, r.fitted) for r in rows]
    assert report.check(doubled, 0.5).value == pytest.approx(1.0)
    assert report.figures(rows)["judged"] == {"n": 2, "median_ratio": 0.5}
    assert report.figures(rows)["fitted"]["n"] == 1


@pytest.mark.parametrize(
    ("gpu", "layers"), [("MI300X 192GB", 21), ("MI325X 256GB", None)]
)
def test_layers_that_run_again_are_those_of_the_rows_own_gpu(
    gpu: str, layers: int | None
) -> None:
    """They are for its memory: the script that a readme names may be another GPU's."""
    said = "config config_MI300X_1x8x1.sh; ACG=full; ACM=block; ACL=21"
    row = row_of("mlperf5-0020", hardware=gpu, notes=said)
    sections = mlperf_scripts.with_script(Setup(slice=""), row).sections or {}
    found = sections.get("megatron", {}).get("recompute_num_layers")
    assert found == layers


def test_what_a_line_exports_behind_a_value_is_a_variable_of_its_own() -> None:
    """Scripts were read line by line."""
    text = "full && export ACM=block && export ACL=21 ;"
    assert dict(mlperf_scripts.apart("ACG", text)) == {
        "ACG": "full",
        "ACM": "block",
        "ACL": "21",
    }
