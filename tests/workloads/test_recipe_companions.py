"""Files beside a recipe: each is used, whatever their order, or refused; none is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.workloads import recipes
from prestep.workloads.recipes._reading import Recipe
from tests.sample import together
from tests.workloads.recipe_examples import EXAMPLES, text_with

ACCELERATE = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_version: 2
mixed_precision: bf16
num_processes: 8
"""
ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
CONFIG = """{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
"intermediate_size": 8192, "vocab_size": 128256}"""
BESIDE = {"accelerate.yaml": ACCELERATE, "zero.json": ZERO3, "config.json": CONFIG}
#: What PyTorch's FSDP and DeepSpeed's third stage are called in a scenario.
WAYS = {"accelerate.yaml": "fsdp", "zero.json": "zero3"}
TRAINER = {
    "axolotl": """
base_model: meta-llama/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 1
bf16: true
""",
    "llama_factory": """
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
finetuning_type: full
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
""",
    "hugging_face": """
model_name_or_path: meta-llama/Llama-3.2-1B
max_length: 2048
per_device_train_batch_size: 1
bf16: true
""",
}


def job(folder: Path, *files: tuple[str, str]) -> Recipe:
    """The recipe of a job of these files, in this order."""
    paths = [folder / name for name, _ in files]
    for path, (_, text) in zip(paths, files, strict=True):
        path.write_text(text)
    first, *others = [recipes.document_of(path) for path in paths]
    return recipes.read(first, others)


def keys(recipe: Recipe) -> dict[str, object]:
    return {setting.key: setting.value for setting in recipe.settings.values()}


@pytest.mark.parametrize("name", ["accelerate.yaml", "zero.json"])
@pytest.mark.parametrize("trainer", TRAINER)
def test_a_trainer_shards_as_the_file_beside_it_says(
    trainer: str, name: str, tmp_path: Path
) -> None:
    """FULL_SHARD is FSDP and stage 3 is ZeRO-3, whichever file comes first."""
    files = (("job.yaml", TRAINER[trainer]), (name, BESIDE[name]))
    there, back = job(tmp_path, *files), job(tmp_path, *files[::-1])
    assert there.format == trainer and there == back
    assert not there.mistakes
    assert keys(there)["parallel.data_parallel"] == WAYS[name]


@pytest.mark.parametrize("name", BESIDE)
@together("form", sorted(EXAMPLES))
def test_no_file_is_dropped(form: str, name: str, tmp_path: Path) -> None:
    """Beside a recipe of any format it changes what is read, or an error names it."""
    example = EXAMPLES[form]
    alone = job(tmp_path, (example.name, text_with(example)))
    try:
        both = job(tmp_path, (example.name, text_with(example)), (name, BESIDE[name]))
    except InputError as error:
        assert [mistake.where for mistake in error.mistakes] == [str(tmp_path / name)]
        assert all(one.found and one.expected for one in error.mistakes)
    else:
        assert both.settings != alone.settings or both.mistakes != alone.mistakes


def test_the_file_that_is_named_is_the_one_that_counts(tmp_path: Path) -> None:
    """Two files of DeepSpeed are a question; one that stands for a missing one is told of."""
    text = TRAINER["llama_factory"] + "deepspeed: ds_z3_offload.json\n"
    given = ("job.yaml", text), ("ds_z3.json", ZERO3)
    missing = job(tmp_path, *given)
    assert not missing.mistakes
    assert any("ds_z3.json stands for it" in note for note in missing.assumed)
    (tmp_path / "ds_z3_offload.json").write_text(ZERO3)
    both = job(tmp_path, *given)
    [mistake] = both.mistakes
    assert mistake.key == "deepspeed" and "ds_z3_offload.json" in mistake.found
    assert "ds_z3.json" in mistake.expected


def test_a_second_file_of_a_kind_is_refused(tmp_path: Path) -> None:
    """Neither of two configurations of accelerate is taken for the job's."""
    one, two = ("a.yaml", ACCELERATE), ("b.yaml", ACCELERATE)
    with pytest.raises(InputError, match="a second one"):
        job(tmp_path, ("job.yaml", TRAINER["axolotl"]), one, two)


def test_numbers_of_deepspeed_are_the_trainers(tmp_path: Path) -> None:
    """transformers refuses another batch than its own (hf_deepspeed.py); one that only DeepSpeed has is taken."""
    engine = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}'
    text = TRAINER["hugging_face"]
    differs = job(tmp_path, ("job.yaml", text), ("zero.json", engine))
    assert [one.key for one in differs.mistakes] == ["train_micro_batch_size_per_gpu"]
    silent = text.replace("per_device_train_batch_size: 1\n", "")
    taken = job(tmp_path, ("job.yaml", silent), ("zero.json", engine))
    assert not taken.mistakes and keys(taken)["training.micro_batch"] == 4


def test_a_config_says_the_model_that_a_recipe_does_not_know(tmp_path: Path) -> None:
    """A recipe that names a model has no use for another one."""
    example = EXAMPLES["torchtitan"]
    unknown = example.text.replace('"8B"', '"9000B"')
    config = ("config.json", CONFIG)
    taken = job(tmp_path, (example.name, unknown), config)
    assert keys(taken)["model.file"] == str(tmp_path / "config.json")
    assert not taken.lacking
    with pytest.raises(InputError, match=r"config\.json.*the recipe names one"):
        job(tmp_path, (example.name, example.text), config)


def test_a_launcher_follows_accelerates_file(tmp_path: Path) -> None:
    """Without it an FSDP job would be one of DDP: the file that is named is read, or missed."""
    script = (
        "accelerate launch --config_file fsdp.yaml train.py "
        "--model_name_or_path meta-llama/Llama-3.2-1B --max_length 2048 --bf16 true\n"
    )
    missing = job(tmp_path, ("run.sh", script))
    assert [one.key for one in missing.mistakes] == ["accelerate_config"]
    given = job(tmp_path, ("run.sh", script), ("fsdp.yaml", ACCELERATE))
    there = job(tmp_path, ("run.sh", script))
    assert keys(there)["parallel.data_parallel"] == "fsdp"
    assert not there.mistakes and keys(given) == keys(there)


def test_megatron_deepspeed_reads_its_engines_file(tmp_path: Path) -> None:
    """The stage is the file's; a script without DeepSpeed has no use for it."""
    script = (
        "deepspeed pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--vocab-size 1000 --micro-batch-size 1 --bf16"
    )
    engine = ("zero.json", ZERO3)
    deep = job(tmp_path, ("run.sh", f"{script} --deepspeed\n"), engine)
    assert keys(deep)["parallel.data_parallel"] == "zero3" and not deep.mistakes
    plain = job(tmp_path, ("run.sh", f"{script}\n"), engine)
    assert [one.where for one in plain.mistakes] == [str(tmp_path / "zero.json")]
