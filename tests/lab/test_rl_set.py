"""The set of RL steps."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lab import CASES
from lab.fit.rl import (
    FACTOR,
    GUESSES,
    START,
    descend,
    fitted_rows,
    known_row,
)
from lab.formats.rl_rows import COLUMNS, read_rows, scenario_of
from lab.sets.rl import validate_set
from prestep.sim.errors import InputError
from prestep.validation.sets.sets import set_table

ROWS = CASES / "rl" / "rows.csv"
ROW = {
    "section": "Performance / Nemo RL v0.5 / H100 BF16 Benchmarks",
    "Algorithm": "GRPO",
    "Model": "LLAMA3.1_8B",
    "On/Off policy": "On policy",
    "T-Max Sequence Length": '"4,096"',
    "G-Average Seq len": '"1,000"',
    "#-GPUs": "16",
    "G-GBS": '"2,048"',
    "T-GBS": "512",
    "Generation [TP,PP]": '"[1,1]"',
    "Training [TP,CP,EP,PP,VPP]": '"[1,1,1,2,n/a]"',
    "Total Step time(s)": "90",
}


def write(folder: Path, *rows: dict[str, str]) -> Path:
    """Rows of the form of ROW with some cells changed."""
    path = folder / "rows.csv"
    lines = [",".join(f'"{name}"' for name in COLUMNS)]
    for changes in rows:
        cells = ROW | changes
        lines.append(",".join(cells[name] for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_groups_for_fitting_follow_from_their_names() -> None:
    """The first third by SHA-256, whatever the rows say."""
    groups = {row.group for row in read_rows(ROWS)}
    order = sorted(groups, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert set(set_table("rl")["fitted"]) == {*order[: len(groups) // 3]}


def test_the_fit_reads_no_group_that_is_judged() -> None:
    fitted = set(set_table("rl")["fitted"])
    assert {row.group for row in fitted_rows()} == fitted
    assert {row.group for row in read_rows(ROWS)} - fitted


def test_a_row_that_is_repeated_counts_once(tmp_path: Path) -> None:
    again = {"section": "Performance / NeMo RL v0.6 / H100 BF16 Benchmarks"}
    rows = read_rows(write(tmp_path, {}, again, {"#-GPUs": "32"}))
    assert [row.count("#-GPUs") for row in rows] == [16, 32]


def test_a_row_becomes_its_scenario(tmp_path: Path) -> None:
    """Columns by hand: 2,048 rollouts are 64 prompts of 32, which 16 GPUs train on in four steps."""
    scenario = scenario_of(read_rows(write(tmp_path, {}))[0])
    rl, parallel = scenario.section("rl"), scenario.parallel
    assert (rl.prompts, rl.generations, rl.rollouts) == (64, 32, 2048)
    assert (rl.mean_length, rl.max_length, rl.train_global_batch) == (1000, 4096, 512)
    assert (rl.max_num_seqs, rl.off_policy_steps) == (1024, 0)
    assert (parallel.pp, parallel.tp) == (2, 1)
    assert (scenario.cluster.name, scenario.cluster.gpus) == ("dgx-h100-superpod", 16)
    assert not rl.async_scheduling


def test_off_policy_rows_decode_apart(tmp_path: Path) -> None:
    change = {
        "On/Off policy": "8-step Off",
        "section": "NeMo RL v0.6 GB200 FP8",
        "Model": "Qwen3-30B3A",
    }
    rl = scenario_of(read_rows(write(tmp_path, change))[0]).section("rl")
    assert (rl.off_policy_steps, rl.max_num_seqs) == (8, 128)
    assert rl.generation_precision == "fp8"
    assert rl.async_scheduling and rl.executor == "ray"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"Model": "GPT-5"}, "Model"),
        ({"#-GPUs": "many"}, "#-GPUs"),
        ({"On/Off policy": "sometimes"}, "On/Off policy"),
        ({"section": "v0.5 A100"}, "section"),
        ({"#-GPUs": "²"}, "#-GPUs"),
        ({"#-GPUs": "9" * 5_000}, "#-GPUs"),
        ({"Training [TP,CP,EP,PP,VPP]": '"[a,b]"'}, "Training"),
        ({"Training [TP,CP,EP,PP,VPP]": '"[1,1]"'}, "Training"),
        ({"Training [TP,CP,EP,PP,VPP]": '"[0,1,1,1,1]"'}, "Training"),
    ],
)
def test_a_cell_that_cannot_be_read_is_told(
    tmp_path: Path, change: dict[str, str], told: str
) -> None:
    path = write(tmp_path, change)
    with pytest.raises(InputError, match=told):
        scenario_of(read_rows(path)[0])


def test_a_file_without_its_columns_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column"):
        read_rows(path)


def test_rows_of_others_are_judged_and_fitted_ones_are_not(tmp_path: Path) -> None:
    report = validate_set("rl", write(tmp_path, {}))
    assert len(report.cases) == 1 and not report.calibration
    assert report.order is None
    assert report.cases[0].predicted > 0
    (fitted,) = [row for row in fitted_rows() if row.number == 1]
    cells = {name: f'"{fitted.cells[name]}"' for name in COLUMNS}
    again = validate_set("rl", write(tmp_path, cells))
    assert len(again.calibration) == 1 and not again.cases


def test_the_descent_finds_the_bottom() -> None:
    """A bowl in two logarithms."""

    def bowl(at: dict[str, float]) -> float:
        return (at["a"] - 3) ** 2 + (at["b"] - 0.5) ** 2

    found = descend(bowl, {"a": 1.0, "b": 1.0})  # type: ignore[arg-type]
    assert found["a"] == pytest.approx(3, rel=0.05)
    assert found["b"] == pytest.approx(0.5, rel=0.05)
    assert all(value > 0 for value in GUESSES.values())


def test_the_machine_s_factor_changes_its_own_rows_alone() -> None:
    """Rows 1 (DGX H100) and 8 (GB200), both of engines of one GPU."""
    rows = {row.number: row for row in fitted_rows() if row.number in (1, 8)}
    known = [known_row(rows[number]) for number in (1, 8)]
    fast, slow = ({**START, FACTOR: factor} for factor in (1.0, 2.0))
    xeon, grace = ((row.error(fast), row.error(slow)) for row in known)
    assert xeon[0] == xeon[1] and grace[0] < grace[1]
