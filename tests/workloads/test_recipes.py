"""Recipes in detail: what a value, a call or a file that is not there comes to, format by format."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import plan
from prestep.sim.spec.load import load_scenario
from prestep.workloads import recipes
from prestep.workloads.recipes._models import model_named
from prestep.workloads.recipes._reading import Recipe
from tests.sample import together


def read(folder: Path, name: str, text: str, part: str = "") -> Recipe:
    """A recipe of that text."""
    path = folder / name
    path.write_text(text)
    document = recipes.document_of(path)
    return recipes.read(
        type(document)(
            document.path, document.kind, document.entries, document.text, part
        )
    )


def said(recipe: Recipe) -> dict[str, object]:
    return {setting.key: setting.value for setting in recipe.settings.values()}


@together(
    ("name", "model"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Llama31Config405B", "llama3.1-405b"),
        ("meta-llama/Llama-3.2-11B-Vision", ""),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("google/gemma-2-9b", ""),
    ],
)
def test_names_mean_one_shape(name: str, model: str) -> None:
    """Versions of one shape are one model; a name that is only like another is none."""
    assert model_named(name) == model


def test_an_unknown_model_is_asked_for_never_guessed(tmp_path: Path) -> None:
    """Primus names torchtitan's models by their files: one that is not known is not the trainer's default."""
    text = "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: {}\n    overrides:\n      training:\n        seq_len: 64\n"
    strange = read(tmp_path, "a.yaml", text.format("new_7b.yaml"))
    assert strange.lacking.keys() == {"model"} and "model.kind" not in said(strange)
    known = read(tmp_path, "b.yaml", text.format("gpt_oss_20b-fp8.yaml"))
    assert said(known)["model.name"] == "gpt-oss-20b" and not known.lacking


def test_layouts_that_an_imported_function_is_given_count(tmp_path: Path) -> None:
    """NeMo's recipes call each other's `trainer`, which is not in the file: its arguments are the layout."""
    text = """
from nemo.collections.llm.recipes.llama3_70b import model, trainer
def pretrain_recipe(num_nodes: int = 8):
    return run.Partial(pretrain, model=model(), trainer=trainer(
        tensor_parallelism=4, pipeline_parallelism=2, virtual_pipeline_parallelism=5,
        num_nodes=num_nodes, num_gpus_per_node=8), data=run.Config(Data, seq_length=128, global_batch_size=64))
"""
    recipe = read(tmp_path, "llama3_70b.py", text)
    keys = said(recipe)
    layout = {key: keys[f"parallel.{key}"] for key in ("tp", "pp", "vpp", "schedule")}
    assert layout == {"tp": 4, "pp": 2, "vpp": 5, "schedule": "interleaved"}
    assert (
        recipe.gpus == 64 and keys["model.name"] == "llama3-70b" and not recipe.unknown
    )


def test_conditions_are_followed_where_they_are_known(tmp_path: Path) -> None:
    """A default decides a branch; a branch that something unknown decides is named and not taken."""
    text = """
import megatron.bridge
def my_config(scheme="lora", fast=False):
    cfg = _pretrain_common()
    cfg.model = from_hf_pretrained("meta-llama/Llama-3.2-1B")
    cfg.train.micro_batch_size = 2 if scheme.lower() == "lora" else 4
    if fast and scheme:
        cfg.train.global_batch_size = 8
    elif scheme is not None:
        cfg.train.global_batch_size = 4 * 4
    if torch.cuda.is_available():
        cfg.train.micro_batch_size = 64
    return cfg
"""
    recipe = read(tmp_path, "r.py", text)
    keys = said(recipe)
    assert (keys["training.micro_batch"], keys["training.global_batch"]) == (2, 16)
    assert any("r.py:11" in line and "is_available" in line for line in recipe.unknown)


def test_scripts_that_source_each_other_are_read_in_order(tmp_path: Path) -> None:
    """Later assignments win; arithmetic is worked out; what only a command could say is named."""
    (tmp_path / "common.sh").write_text(
        "export MICRO_BATCH_SIZE=4\nexport TENSOR_MODEL_PARALLEL=2\n"
    )
    text = """
export MODEL_SIZE=8b
source $(dirname ${BASH_SOURCE[0]})/common.sh
export MICRO_BATCH_SIZE=2  # over common.sh
: ${MICRO_BATCH_SIZE:=1}
export MINIBS=$(( TENSOR_MODEL_PARALLEL * 4 ))
export SHARP=$(hostname)
export NCCL_MIN_CTAS=32;
"""
    recipe = read(tmp_path, "config_X.sh", text)
    keys = said(recipe)
    assert (keys["training.micro_batch"], keys["training.microbatches"]) == (2, 4)
    assert keys["nccl.min_ctas"] == 32 and "nccl.collnet" not in keys
    assert any("SHARP" in line for line in recipe.unknown)


def test_files_that_a_recipe_names_lie_beside_it(tmp_path: Path) -> None:
    """DeepSpeed's file of a TrainingArguments is read with it; one that is missing is a mistake."""
    arguments = "model_name_or_path: meta-llama/Llama-3.2-1B\nmax_seq_length: 64\nper_device_train_batch_size: 1\ndeepspeed: configs/ds.json\n"
    missing = read(tmp_path, "a.yaml", arguments)
    assert any("ds.json" in mistake.found for mistake in missing.mistakes)
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
    )
    there = read(tmp_path, "b.yaml", arguments)
    assert not there.mistakes and said(there)["parallel.data_parallel"] == "zero2"


@pytest.mark.parametrize(
    "text",
    [
        "bf16: maybe",
        "gradient_accumulation_steps: many",
        "fsdp_config:\n  fsdp_sharding_strategy: HYBRID",
    ],
)
def test_wrong_values_have_their_line(tmp_path: Path, text: str) -> None:
    """The place of a mistake is the file and the line of the key."""
    recipe = read(
        tmp_path,
        "a.yaml",
        f"model_name_or_path: meta-llama/Llama-3.2-1B\nmax_seq_length: 64\n{text}\n",
    )
    wrong = [*recipe.mistakes, *recipe.lost]
    line = 3 + text.count("\n")
    assert [mistake.where for mistake in wrong] == [f"{tmp_path / 'a.yaml'}:{line}"]


def test_unknown_files_are_told_what_would_be_known(tmp_path: Path) -> None:
    """The error names the keys that were found and how each format looks."""
    path = tmp_path / "a.yaml"
    path.write_text("lr: 1\n")
    with pytest.raises(InputError, match=r"lr.*torchtitan"):
        recipes.read(recipes.document_of(path))


@pytest.mark.parametrize(
    ("algorithm", "schedule", "chunks"),
    [
        ("v-half", "v-half", 2),
        ("zbv-formatted", "zbv", 2),
        ("zero-bubble", "zero-bubble", None),
    ],
)
def test_schedules_of_primus_have_their_names_here(
    tmp_path: Path, algorithm: str, schedule: str, chunks: int | None
) -> None:
    """Where its own pipeline is on; a name that it does not have is a mistake."""
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3_8B.yaml\n    overrides:\n"
        "      micro_batch_size: 1\n      global_batch_size: 16\n      seq_length: 4096\n"
        "      pipeline_model_parallel_size: 4\n      patch_primus_pipeline: true\n"
    )
    keys = said(read(tmp_path, "a.yaml", text + f"      pp_algorithm: {algorithm}\n"))
    assert keys["parallel.schedule"] == schedule
    assert keys.get("parallel.vpp") == chunks
    wrong = read(tmp_path, "b.yaml", text + "      pp_algorithm: fastest\n")
    assert any("fastest" in mistake.found for mistake in wrong.mistakes)


@pytest.mark.parametrize(
    ("name", "flavor", "attention"),
    [
        ("deepseek_v3", "16B", "cudnn"),
        ("llama4", "17bx16e", "flash2"),
        ("gpt_oss", "20b", "flash2"),
    ],
)
def test_eager_experts_of_torchtitan_run_in_its_own_layers(
    tmp_path: Path, name: str, flavor: str, attention: str
) -> None:
    """Latent attention, windows and sinks, with experts in grouped products; nothing stands in."""
    text = f"""
[model]
name = "{name}"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
expert_parallel_degree = 4
"""
    path = tmp_path / "train.toml"
    path.write_text(text)
    scenario = load_scenario(path, ["cluster.name=dgx-h100", "cluster.gpus=8"])
    assert scenario.training.framework == "pytorch-eager"
    assert scenario.pytorch.experts == "grouped"
    assert scenario.pytorch.attention == attention
    assert not any("stand for" in note for note in scenario.notes)
    plan(scenario)
