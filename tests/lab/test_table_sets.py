"""Tables that others print of their own columns: rows become scenarios, and what cannot is skipped with its reason."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.fit.automodel import FACTORS, GROUP, rows
from lab.formats import automodel_rows, low_precision_rows
from lab.sets.table import validate_set
from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.validation.sets.sets import set_table

AUTOMODEL = {
    "doc_tag": "v0.2.0",
    "section": "Pre-Training Performance / System: DGX-H100, Precision: BF16",
    "Model": "GPT-OSS 20B",
    "#GPUs": "8",
    "GBS": "256",
    "MBS": "2",
    "LBS": "2",
    "Seq Length": "4096",
    "TP": "1",
    "PP": "1",
    "CP": "1",
    "EP": "-",
    "VP": "-",
    "FSDP": "8",
    "Time per Global Step (s)": "10.04",
}
LOW_PRECISION = {
    "source": "torchtitan/components/quantization/mxfp8.md",
    "hardware": "B200 power limited",
    "gpus": "8",
    "model": "Llama-3-8B",
    "seq_len": "8192",
    "local_batch": "1",
    "parallel": "FSDP2 8",
    "recompute": "per-op SAC",
    "compile": "yes",
    "precision": "bf16",
    "tokens_s_per_gpu": "8307.5",
}
SETS = {"automodel": AUTOMODEL, "low-precision": LOW_PRECISION}


def written(folder: Path, *rows: Mapping[str, str]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_global_step_is_split_over_replicas_and_runs() -> None:
    """256 sequences are 2 at once on each of 8 GPUs: 16 runs."""
    tables = automodel_rows.parse_row(AUTOMODEL).tables
    assert (tables["parallel"]["dp"], tables["training"]["micro_batch"]) == (8, 2)
    assert tables["training"]["global_batch"] == 256


def test_tokens_per_second_are_seconds_of_a_step() -> None:
    """A GPU that takes one sequence of 8,192 tokens at 8,307.5 tokens/s needs 0.986 s."""
    step = low_precision_rows.parse_row(LOW_PRECISION)
    assert step.measured == pytest.approx(8192 / 8307.5)
    assert step.tables["parallel"]["dp"] == 8


@pytest.mark.parametrize("name", SETS)
def test_a_row_that_is_no_step_is_skipped_and_says_why(
    name: str, tmp_path: Path
) -> None:
    row = SETS[name]
    strange = {**row, "#GPUs": "some"} if "#GPUs" in row else {**row, "gpus": "some"}
    report = validate_set(name, written(tmp_path, row, strange))
    assert [case.measured > 0 and case.predicted > 0 for case in report.cases] == [True]
    ((_, why),) = report.skipped
    assert "some" in why


@pytest.mark.parametrize("text", ["1e999", "1e99", "-1", "0", "1.5x"])
@pytest.mark.parametrize("column", ["GBS", "Seq Length", automodel_rows.TIME])
def test_a_number_that_is_none_is_named(column: str, text: str, tmp_path: Path) -> None:
    report = validate_set("automodel", written(tmp_path, {**AUTOMODEL, column: text}))
    assert not report.cases
    assert column in report.skipped[0][1]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("gpus", ","),
        ("gpus", "0"),
        ("seq_len", "9" * 5_000),
        ("parallel", "TP0"),
        ("tokens_s_per_gpu", "1e308"),
        ("tokens_s_per_gpu", "1e999"),
    ],
)
def test_a_step_in_low_precision_that_cannot_be_is_skipped(
    column: str, text: str, tmp_path: Path
) -> None:
    rows = written(tmp_path, {**LOW_PRECISION, column: text})
    report = validate_set("low-precision", rows)
    assert not report.cases
    assert column in report.skipped[0][1]


@pytest.mark.parametrize(
    ("name", "lost"), [("automodel", "Model"), ("low-precision", "precision")]
)
def test_a_column_that_is_missing_is_named(
    name: str, lost: str, tmp_path: Path
) -> None:
    row = SETS[name]
    cells = {key: value for key, value in row.items() if key != lost}
    with pytest.raises(InputError, match=f"no column {lost}"):
        validate_set(name, written(tmp_path, cells))


def test_a_release_has_its_own_recipe() -> None:
    """Llama 3 70B's layers are eager in v0.2.0, its norms fused in v0.3.0, and all compiled in v0.4.0 and later."""
    row = {
        **AUTOMODEL,
        "section": "Finetuning (LoRA) Performance",
        "Model": "Llama3 70B",
        "GBS": "32",
        "MBS": "2",
        "TP": "2",
    }
    pytorch = [
        automodel_rows.parse_row({**row, "doc_tag": tag}).tables["pytorch"]
        for tag in ("v0.2.0", "v0.3.0", "v0.4.0", "v9.0.0")
    ]
    eager = [table.get("eager_operators") for table in pytorch]
    assert eager == [["norm", "activation"], ["activation"], None, None]
    assert ["compiled_layers" in table for table in pytorch] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("cells", "framework"),
    [
        ({}, "pytorch-compiled"),
        (
            {"model": "Llama-3.1-70B", "gpus": "64", "parallel": "FSDP 8, TP 8"},
            "automodel",
        ),
        ({"model": "DeepSeek-V3-16B", "parallel": "FSDP 8, EP 8"}, "automodel"),
        (
            {"model": "Llama-4-Scout", "gpus": "64", "parallel": "FSDP 64, EP 16"},
            "automodel",
        ),
        ({"hardware": "H200"}, "pytorch-compiled"),
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "mxfp8", "float8 tensorwise"])
def test_a_layout_has_an_engine(
    cells: Mapping[str, str], framework: str, precision: str
) -> None:
    """Dense blocks under FSDP alone are compiled blocks; what else torchtitan composes is read as a scenario, too."""
    row = {**LOW_PRECISION, "precision": precision, **cells}
    step = low_precision_rows.parse_row(row)
    assert step.tables["training"]["framework"] == framework
    parse_scenario(dict(step.tables), step.id)


def test_a_pipelines_local_batch_is_microbatches_of_one() -> None:
    row = {
        **LOW_PRECISION,
        "hardware": "H100",
        "gpus": "512",
        "model": "Llama-3.1-405B",
        "local_batch": "8",
        "parallel": "FSDP 8, TP 8, PP 8",
    }
    training = low_precision_rows.parse_row(row).tables["training"]
    assert (training["micro_batch"], training["microbatches"]) == (1, 8)
    assert training["global_batch"] == 64


def test_hosts_of_automodel_were_fitted_to_rows_for_fitting_alone() -> None:
    """And all rows, judged ones too, ran on hosts as fast as those."""
    assert GROUP in set_table("automodel")["fitted"]
    assert all(automodel_rows.group_of(row) == GROUP for row in rows())
    known = automodel_rows.read(automodel_rows.FOLDER / "rows.csv")
    factors = {
        automodel_rows.parse_row(row).tables["cluster"]["host_factor"] for row in known
    }
    (factor,) = factors
    assert factor in FACTORS
