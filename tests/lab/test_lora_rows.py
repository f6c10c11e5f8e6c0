"""Rows of LoRA results as rows of published steps: layouts that are sure, steps that are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.formats.lora_rows import Layout, layout_of, published
from lab.sets.published import run_of, validate_set
from prestep.sim.errors import InputError

ROW = {
    "mlperf": "v5.0",
    "org": "Somebody",
    "system": "box",
    "accelerator": "NVIDIA Blackwell GPU (B200-SXM-180GB)",
    "nodes": "1",
    "per_node": "8",
    "gpus": "8",
    "global_batch": "8",
    "grad_accum": "1",
    "throughput_median": "4",
    "step_s_median": "",
    "config": "",
    "config_how": "",
}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("step_s_median", "1.5x"),
        ("step_s_median", "-1"),
        ("step_s_median", "nan"),
        ("throughput_median", "0"),
        ("global_batch", ""),
        ("global_batch", "1e999"),
        ("global_batch", "0"),
        ("grad_accum", "0"),
        ("gpus", "eight"),
    ],
)
def test_a_damaged_cell_leaves_the_row_out_and_names_it(column: str, text: str) -> None:
    made, left_out = published([of(**{column: text}), of()])
    assert len(made) == len(left_out) == 1
    assert column in left_out[0][1]


def of(**cells: str) -> dict[str, str]:
    return ROW | cells


def test_a_step_is_the_batch_over_the_throughput_unless_it_was_logged() -> None:
    rows, _ = published([of(), of(step_s_median="1.5")])
    assert [float(row["metric_value"]) for row in rows] == [2.0, 1.5]
    _, left_out = published([of(throughput_median="")])
    assert "no time of a step" in left_out[0][1]


def test_a_replica_of_one_rank_has_one_layout() -> None:
    assert layout_of(of()) == Layout(1, 1, 1)


def test_a_script_that_the_log_contradicts_decides_nothing() -> None:
    config = "config_B200_1x8x4xtp4pp1cp1.sh"
    with pytest.raises(InputError, match="one layout in both"):
        layout_of(of(config=config))
    assert layout_of(of(config=config, grad_accum="4")) == Layout(4, 1, 1)


def test_several_scripts_decide_only_where_they_agree() -> None:
    two = of(grad_accum="2")
    agreed = "ambiguous: config_A_1x8x2xtp2pp1cp1.sh config_B_1x8x1xtp1pp1cp1.sh"
    assert layout_of(two | {"config_how": agreed}) == Layout(2, 1, 1)
    for how in (
        "",
        f"{agreed} config_C_1x8x2xtp1pp1cp2.sh",
        f"{agreed} config_box.sh",  # any layout
    ):
        with pytest.raises(InputError, match="one possible layout"):
            layout_of(two | {"config_how": how})
    other = layout_of(two | {"config_how": f"{agreed} config_MI300X.sh"})
    assert other == Layout(2, 1, 1)


def test_variables_of_the_row_are_switches_of_the_scenario() -> None:
    """Graphs and adapters reach the scenario; a file of other people's rows needs no scripts beside it."""
    cells = {"cfg_MCORE_CUDA_GRAPH": "1", "cfg_NCCL_MIN_CTAS": "32;"}
    config = {"config": "config_box_1x8x1xtp1pp1cp1.sh"}
    rows, left_out = published([of(**config, **cells)])
    assert not left_out
    scenario = run_of(rows[0]).scenario
    assert scenario["megatron"]["cuda_graph_scope"] == ["attn", "mlp"]
    assert scenario["nccl"]["min_ctas"] == 32
    assert scenario["adapter"]["rank"] == 16
    assert (scenario["parallel"]["dp"], scenario["parallel"]["tp"]) == (8, 1)


@pytest.mark.parametrize(
    ("text", "found"), [("mlperf\nv5.0\n", "accelerator"), ("mlperf\n", "no rows")]
)
def test_columns_that_are_missing_are_named(
    tmp_path: Path, text: str, found: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=found):
        validate_set("lora", path)


@pytest.mark.parametrize(
    ("accelerator", "cluster"),
    [
        ("AMD Instinct MI300X 192GB HBM3", "mi300x"),
        ("AMD Instinct MI325X 256GB HBM3E DLC", "mi325x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("AMD Instinct MI355X", "mi355x"),
    ],
)
def test_rows_on_amds_gpus_stand_apart(accelerator: str, cluster: str) -> None:
    """They are predicted, with what is assumed of their products said: a row that assumes something does not judge."""
    row = of(accelerator=accelerator, gpus="8", nodes="1", global_batch="8")
    (made,), left_out = published([row])
    run = run_of(made)
    assert not left_out and run.scenario["cluster"]["name"] == cluster
    assert "fp8" in run.assumed


def test_other_gpus_of_amd_are_refused_by_name() -> None:
    row = of(accelerator="AMD Instinct MI250X", gpus="8", nodes="1", global_batch="8")
    (made,), _ = published([row])
    with pytest.raises(InputError, match="MI250X"):
        run_of(made)
