"""Tables that others print of their own columns: rows become scenarios, and what cannot is skipped with its reason."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sim.errors import InputError
from validation.formats import automodel_rows, low_precision_rows
from validation.report.published import PublishedReport
from validation.sets import automodel, low_precision

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
Validate = Callable[[str, Path], PublishedReport]
SETS: dict[str, tuple[Validate, Mapping[str, str]]] = {
    "automodel": (automodel.validate_set, AUTOMODEL),
    "low-precision": (low_precision.validate_set, LOW_PRECISION),
}


def written(folder: Path, *rows: Mapping[str, str]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_global_step_is_split_over_replicas_and_runs() -> None:
    """256 sequences are 2 at once on each of 8 GPUs: 16 runs."""
    tables = automodel_rows.said(AUTOMODEL).tables
    assert (tables["parallel"]["dp"], tables["training"]["micro_batch"]) == (8, 2)
    assert tables["training"]["global_batch"] == 256


def test_tokens_per_second_are_seconds_of_a_step() -> None:
    """A GPU that takes one sequence of 8,192 tokens at 8,307.5 tokens/s needs 0.986 s."""
    said = low_precision_rows.said(LOW_PRECISION)
    assert said.measured == pytest.approx(8192 / 8307.5)
    assert said.tables["parallel"]["dp"] == 8


@pytest.mark.parametrize("name", SETS)
def test_a_row_that_is_no_step_is_skipped_and_says_why(
    name: str, tmp_path: Path
) -> None:
    validate, row = SETS[name]
    strange = {**row, "#GPUs": "some"} if "#GPUs" in row else {**row, "gpus": "some"}
    report = validate(name, written(tmp_path, row, strange))
    assert [case.measured > 0 and case.predicted > 0 for case in report.cases] == [True]
    ((_, why),) = report.skipped
    assert "some" in why


@pytest.mark.parametrize("text", ["1e999", "1e99", "-1", "0", "1.5x"])
@pytest.mark.parametrize("column", ["GBS", "Seq Length", automodel_rows.TIME])
def test_a_number_that_is_none_is_named(column: str, text: str, tmp_path: Path) -> None:
    report = automodel.validate_set(
        "automodel", written(tmp_path, {**AUTOMODEL, column: text})
    )
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
    report = low_precision.validate_set("low-precision", rows)
    assert not report.cases
    assert column in report.skipped[0][1]


@pytest.mark.parametrize(
    ("name", "lost"), [("automodel", "Model"), ("low-precision", "precision")]
)
def test_a_column_that_is_missing_is_named(
    name: str, lost: str, tmp_path: Path
) -> None:
    validate, row = SETS[name]
    cells = {key: value for key, value in row.items() if key != lost}
    with pytest.raises(InputError, match=f"no column {lost}"):
        validate(name, written(tmp_path, cells))
