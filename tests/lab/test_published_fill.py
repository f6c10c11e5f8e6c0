"""Published rows that nobody has seen yet: completed where that is honest, skipped with a reason elsewhere."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.published_setups import FOLDER
from lab.sets.published import read, run_of, sort
from prestep.cli import main
from prestep.sim.errors import InputError

ROWS = {row["id"]: row for row in read(FOLDER / "rows.csv")}
LAB = ROWS["titan-0012"] | {
    "id": "lab-1",
    "source": "A lab, 2025",
    "hardware": "H100 80GB HBM3",
    "gpus": "64",
    "nodes": "8",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "seq_len": "4096",
    "global_batch": "128",
    "micro_batch": "1",
    "tp": "2",
    "dp": "32",
    "zero_or_fsdp": "",
    "recompute": "",
    "precision": "bf16",
    "notes": "",
    "model": "Llama-3-8B",
    "metric_value": "9000",
}


def lab(**cells: str) -> dict[str, str]:
    return LAB | cells


@pytest.mark.parametrize(
    ("hardware", "cluster"),
    [
        ("8x A100-SXM4-80GB", "roce-a100"),
        ("A100 40GB", "roce-a100-40gb"),
        ("DGX H100", "rail-h100"),
        ("HGX H800", "rail-h800"),
        ("H200 141GB", "rail-h200"),
        ("DGX-B200", "dgx-b200-superpod"),
        ("GB200 NVL72", "gb200-nvl64"),
        ("gb300", "gb300-nvl64"),
        ("B300", "dgx-b300-superpod"),
    ],
)
def test_a_source_nobody_described(hardware: str, cluster: str) -> None:
    """Its machine goes by the name of the GPU and its framework by default, and both are said to be assumed."""
    run = run_of(lab(hardware=hardware))
    assert run.scenario["cluster"]["name"] == cluster
    assert "cluster assumed" in run.assumed and "framework assumed" in run.assumed


@pytest.mark.parametrize(
    "source", ["dgxc-0001", "mosaic-0001", "bridge-0078", "mlma100-0002", "korth-0001"]
)
def test_a_described_source_rests_on_nothing_generic(source: str) -> None:
    """Neither the generic cluster nor the generic framework touches a row that its own setups settle."""
    assert run_of(next(row for id_, row in ROWS.items() if id_ >= source)).assumed == ""


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("FSDP2", "fsdp"),
        ("ZeRO-3", "fsdp"),
        ("MaxText", "fsdp"),
        ("DDP", "ddp"),
        ("", "zero1"),
    ],
)
def test_the_framework_goes_by_the_words_of_the_row(words: str, kind: str) -> None:
    """How parameters are sharded, wherever the row says it."""
    assert run_of(lab(zero_or_fsdp=words)).scenario["parallel"]["data_parallel"] == kind
    assert run_of(lab(notes=words)).scenario["parallel"]["data_parallel"] == kind


@pytest.mark.parametrize(
    ("cells", "missing"),
    [
        ({"hardware": "MI300X"}, "no NVIDIA GPU"),
        ({"hardware": "TPU v5p-256"}, "no NVIDIA GPU"),
        ({"hardware": "H100 PCIe"}, "no cluster file"),
        ({"hardware": "L40S"}, "no cluster file"),
        ({"hardware": ""}, "hardware"),
        ({"model": "ViT-22B"}, "no decoder-only"),
        ({"model": "Jamba"}, "no attention"),
        ({"tp": "", "pp": "", "dp": ""}, "no tp, pp"),
        ({"seq_len": ""}, "no seq_len"),
        ({"precision": "int8"}, "int8"),
        ({"recompute": "every fourth"}, "every fourth"),
        ({"metric_name": "loss"}, '"loss"'),
        ({"metric_name": "step_time", "unit": "fortnights"}, "fortnights"),
        ({"unit": "tokens/day"}, "tokens/day"),
        ({"metric_value": "n/a"}, "n/a"),
        ({"gpus": "nan"}, "nan"),
        ({"micro_batch": "0.5"}, "0.5"),
        ({"tp": "0"}, "tp"),
        ({"model": "Strange-MoE-40B"}, "its experts"),
    ],
)
def test_what_cannot_be_said_is_told(cells: dict[str, str], missing: str) -> None:
    """The reason names what is missing or not understood; no default takes its place."""
    with pytest.raises(InputError) as found:
        run_of(lab(**cells))
    assert missing in str(found.value)


@pytest.mark.parametrize(
    ("cells", "key", "value"),
    [
        ({"tp": ""}, "tp", 2),
        ({"pp": ""}, "pp", 1),
        ({"dp": ""}, "dp", 32),
        ({"gpus": ""}, "dp", 32),
        ({"tp": "", "pp": "", "dp": "4"}, "tp", 8),
        ({"tp": "", "pp": "", "dp": "4"}, "pp", 2),
    ],
)
def test_axes_by_division(cells: dict[str, str], key: str, value: int) -> None:
    """A missing axis is what the others leave; of two, tensor parallelism stays within a host; it is said."""
    run = run_of(lab(**cells))
    assert run.scenario["parallel"][key] == value
    assert run.assumed.startswith(tuple(f"{name} " for name in cells))


def test_dimensions_by_name() -> None:
    """A model known by its name brings its dimensions, unless the row's own contradict them."""
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    model = run_of(lab(**empty)).scenario["model"]
    assert (model["layers"], model["hidden"], model["kv_heads"], model["ffn"]) == (
        32,
        4096,
        8,
        14336,
    )
    with pytest.raises(InputError, match="no layers"):
        run_of(lab(**{**empty, "hidden": "5120"}))


def test_layers_from_parameters() -> None:
    """A GPT of 200 thousand million parameters and width 14,400 has 80 layers, in whole stages, 96 heads by its log."""
    model = run_of(ROWS["bigsci-0015"]).scenario["model"]
    assert (model["layers"], model["heads"]) == (80, 96)


@pytest.mark.parametrize(
    ("metric", "value", "unit", "time"),
    [
        ("step_time", "0.02", "min", 1.2),
        ("tokens_per_s", "524,288", "tokens/s", 1.0),
        ("samples_per_s", "64", "samples/s", 2.0),
        ("samples_per_s_per_gpu", "1", "samples/s/GPU", 2.0),
        ("tokens_per_s_per_gpu", "8192", "tokens/s/GPU", 1.0),
        ("steps_per_s", "4", "it/s", 0.25),
    ],
)
def test_metrics(metric: str, value: str, unit: str, time: float) -> None:
    """Every way to print a rate is the same step."""
    row = lab(metric_name=metric, metric_value=value, unit=unit)
    assert run_of(row).measured == pytest.approx(time)


def test_utilisation_is_of_the_dense_peak() -> None:
    """An MFU of 50 % is that of the same share without a per cent sign, and of half the bf16 peak in TFLOP/s."""
    half, share = (
        run_of(lab(metric_name="mfu", metric_value=v, unit=u)).measured
        for v, u in (("50", "%"), ("0.5", ""))
    )
    flops = run_of(
        lab(
            metric_name="model_tflops_per_gpu", metric_value="494.5", unit="TFLOP/s/GPU"
        )
    ).measured
    assert half == share == pytest.approx(flops, rel=2e-3)


def test_a_name_nobody_knows_is_a_decoder() -> None:
    """Three matrices like Llama's, or two like GPT's where the inner width is four times the outer; it is said."""
    wide = run_of(lab(model="Quux 8B"))
    assert (
        wide.scenario["model"]["gated"]
        and "family of Quux 8B assumed: Llama" in wide.assumed
    )
    assert not run_of(lab(model="Quux 8B", ffn="16384")).scenario["model"]["gated"]
    said = run_of(
        lab(model="Quux MoE", notes="MoE 64 experts top4 moe_ffn 1024")
    ).scenario["model"]
    assert (said["experts"], said["experts_per_token"], said["moe_ffn"]) == (
        64,
        4,
        1024,
    )


def test_hosts_of_another_size_are_told() -> None:
    """Sixteen hosts of four GPUs are taken as hosts of eight, and the row says so."""
    assert "16 hosts of 4 GPUs taken as hosts of 8" in run_of(lab(nodes="16")).notes


CELLS = st.sampled_from(
    ["", "0", "-1", "1", "3", "7", "8", "1e400", "nan", "x", "1,024", "4K", "null", "٣"]
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(set(LAB) - {"id"})), CELLS, max_size=4))
def test_no_cell_breaks_the_reading(cells: dict[str, Any]) -> None:
    """Whatever stands in its cells, a row is a run or has a reason."""
    runs, skips = sort([lab(**cells)])
    assert len(runs) + len(skips) == 1
    assert all(reason for _, reason in skips)


def test_rows_of_ones_own(tmp_path: Path) -> None:
    """`validate published --rows` prints predictions, what was assumed, and reasons; a refused run is skipped."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list(LAB))
        out.writeheader()
        out.writerows(
            [LAB, lab(id="lab-2", hardware="MI300X"), lab(id="lab-3", tp="64", dp="1")]
        )
    result = CliRunner().invoke(
        main, ["validate", "published", "--rows", str(path), "--jobs", "1", "--json"]
    )
    assert result.exit_code in (0, 1) and "Traceback" not in result.output
    assert '"lab-1"' in result.stdout and "cluster assumed" in result.stdout
    assert (
        "no NVIDIA GPU" in result.stdout
        and "expected a multiple of tp = 64" in result.stdout
    )
