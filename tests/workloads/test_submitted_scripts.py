"""Scripts of MLPerf submissions as recipes: all that were published are understood, and what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.formats.mlperf_scripts import FILES, apart
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario
from prestep.sim.studies.search.scenario_file import text_beside
from tests.sample import together

SCRIPTS: dict[str, dict[str, Any]] = {
    name: entry
    for path in FILES
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items()
}
#: A script that leaves out a size, which its job gives.
ASKED = "MINIBS: found null"
MEGATRON_8B = (
    *("export DGXNNODES=4", "export DGXNGPU=8", "export MODEL_SIZE=8b"),
    *("export TENSOR_MODEL_PARALLEL=4", "export PIPELINE_MODEL_PARALLEL=4"),
    *("export MINIBS=8", "export MICRO_BATCH_SIZE=1"),
)


def written(folder: Path, *lines: str) -> Path:
    """A script of those lines."""
    path = folder / "config_test.sh"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@together("name", SCRIPTS)
def test_every_script_becomes_a_scenario_that_is_read_again(
    name: str, tmp_path: Path
) -> None:
    """What it says is written as a scenario with the same settings; else its own mistake is named."""
    benchmark = name.rpartition("/")[2]
    folder = tmp_path / benchmark
    folder.mkdir()
    pairs = [pair for each in SCRIPTS[name]["env"].items() for pair in apart(*each)]
    lines = (f"export {key}={json.dumps(value)}" for key, value in pairs)
    script = written(folder, *lines)
    chosen = ("cluster.name=rail-h100", "recipe.lenient=true")
    try:
        scenario = load_scenario(script, chosen)
    except InputError as error:
        text = str(error)
        assert text.count("found") == 1 and ASKED in text, text
        return
    again = folder / "scenario.toml"
    again.write_text(text_beside(scenario, folder), encoding="utf-8")
    kept = load_scenario(again)
    for section in ("training", "parallel", "megatron", "nccl", "adapter", "model"):
        assert getattr(kept, section) == getattr(scenario, section)


def test_user_buffers_that_are_off_have_no_switches(tmp_path: Path) -> None:
    """Their switches are passed over where TP_COMM_OVERLAP is off, and named where it is on."""
    switches = ("export MC_TP_OVERLAP_AG=False", "export NVTE_UB_FP8_RS=1")
    off = written(tmp_path, *MEGATRON_8B, "export TP_COMM_OVERLAP=False", *switches)
    chosen = ("cluster.name=rail-h100",)
    assert not load_scenario(off, chosen).megatron.tp_comm_overlap
    on = written(tmp_path, *MEGATRON_8B, "export TP_COMM_OVERLAP=True", *switches)
    with pytest.raises(InputError, match="single user buffers"):
        load_scenario(on, chosen)


def test_a_reduce_scatter_by_strides_is_of_atomic_products(tmp_path: Path) -> None:
    """Transformer Engine asks for it beside atomic products alone."""
    lines = (
        *MEGATRON_8B,
        "export TP_COMM_OVERLAP=True",
        "export NVTE_RS_STRIDED_ATOMIC=2",
    )
    chosen = ("cluster.name=rail-h100",)
    assert load_scenario(written(tmp_path, *lines), chosen).megatron.tp_comm_overlap
    atomic = written(tmp_path, *lines, "export NVTE_UB_ATOMIC_GEMM_RS=1")
    with pytest.raises(InputError, match="atomic products"):
        load_scenario(atomic, chosen)


def test_a_late_head_and_channels_of_messages_are_taken_over(tmp_path: Path) -> None:
    """They were left out before; now they are keys of the scenario."""
    path = written(
        tmp_path,
        *MEGATRON_8B,
        "export DEFER_EMBEDDING_WGRAD_COMPUTE=True",
        "export WGRAD_DEFERRAL_LIMIT=5",
        "export NCCL_MIN_P2P_NCHANNELS=32;",
    )
    scenario = load_scenario(path, ("cluster.name=rail-h100",))
    assert scenario.megatron.defer_embedding_wgrad_compute
    assert scenario.megatron.wgrad_deferral_limit == 5
    assert scenario.nccl.min_p2p_nchannels == 32
