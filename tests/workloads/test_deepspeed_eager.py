"""DeepSpeed's ZeRO around PyTorch's modules: what is reduced, gathered and kept, and recipes that ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import plan, predict
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario

MODEL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 4096,
    "vocab": 8192,
}


def job(
    way: str = "zero1", dp: int = 8, framework: str = "deepspeed-eager", **pytorch: Any
) -> Scenario:
    return parse_scenario(
        {
            "cluster": {"name": "dgx-h100", "gpus": dp},
            "model": MODEL,
            "training": {"framework": framework, "seq_len": 1024, "micro_batch": 2},
            "parallel": {"dp": dp, "data_parallel": way if dp > 1 else "none"},
            "pytorch": {"modules": "transformers", **pytorch},
        },
        "test",
    )


@pytest.mark.parametrize("way", ["zero1", "zero2"])
def test_all_gradients_are_reduced_and_all_parameters_gathered(way: str) -> None:
    """As many bytes as the parameters have in 16 bits, each way; beside them only single numbers."""
    planned = plan(job(way))
    size: dict[str, float] = {}
    for comm in planned.graph.comms:
        size[comm.op] = size.get(comm.op, 0.0) + comm.size
    parameters = 2.0 * planned.lowered.parameters
    assert size["all_gather"] == pytest.approx(parameters, rel=1e-6)
    assert size["all_reduce"] == pytest.approx(parameters, rel=1e-6)


def test_the_engine_takes_longer_than_pytorchs_own(tmp_path: Path) -> None:
    """It looks at every tensor twice, and the host waits for what it finds."""
    engine = predict(job("zero1")).step_time
    assert engine > predict(job("ddp", framework="pytorch-eager")).step_time


def test_a_partition_is_smaller_with_more_ranks() -> None:
    """fp32 weights and two moments of as many parameters as a rank has to update."""
    few, many = (predict(job("zero1", dp)).peak_memory[0].optimizer for dp in (2, 8))
    assert many == pytest.approx(few / 4, rel=1e-3)


@pytest.mark.parametrize("key", ["clip_gradients", "master_weights"])
def test_what_the_engine_does_anyway_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=key):
        job("zero1", 8, "deepspeed-eager", **{key: True})


@pytest.mark.parametrize(
    ("stage", "framework", "way"),
    [
        (1, "deepspeed-eager", "zero1"),
        (2, "deepspeed-eager", "zero2"),
        (3, "deepspeed-eager", "zero3"),
    ],
)
def test_a_trainer_of_hugging_face_under_deepspeed_runs_transformers_modules(
    stage: int, framework: str, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name_or_path: meta-llama/Llama-3.2-1B\nbf16: true\nmax_seq_length: 1024\n"
        "per_device_train_batch_size: 2\ndeepspeed: zero.json\n"
    )
    (tmp_path / "zero.json").write_text(
        f'{{"zero_optimization": {{"stage": {stage}}}}}'
    )
    scenario = load_scenario(path, ("cluster.name=dgx-h100",))
    assert scenario.training.framework == framework
    assert scenario.parallel.data_parallel == way
    assert scenario.pytorch.modules == "transformers"


SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}
ROUTED = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("model", "liger", "stands"),
    [
        ({"model_type": "llama"}, False, ""),
        ({"model_type": "llama"}, True, "fused_linear_cross_entropy"),
        (ROUTED, False, "experts"),
        ({"model_type": "qwen3_next", "num_experts": 0}, False, "layer_pattern"),
    ],
)
def test_zero_3_that_is_not_simulated_stands_as_fsdp2_in_a_recipe(
    model: dict[str, Any], liger: bool, stands: str, tmp_path: Path
) -> None:
    """Other models and losses are read, not refused, and said to be read so."""
    path = tmp_path / "args.json"
    said = {"per_device_train_batch_size": 1, "bf16": True, "deepspeed": "zero.json"}
    words = {"max_length": 1024, "use_liger_kernel": liger, "output_dir": "made"}
    path.write_text(json.dumps({"model_name_or_path": "."} | said | words))
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "config.json").write_text(json.dumps(SIZES | model))
    read = load_scenario(path, ("cluster.name=dgx-h100",))
    notes = [each for each in read.notes if "counts as PyTorch's FSDP2" in each]
    assert read.parallel.data_parallel == ("fsdp" if stands else "zero3")
    assert [stands in each for each in notes] == [True] * bool(stands)
