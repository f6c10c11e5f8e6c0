"""Recipes that train models on pictures or sound are told from those of text, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prestep.workloads import recipes
from prestep.workloads.models.hugging_face import left_out
from tests.sample import together
from tests.workloads.recipe_examples import EXAMPLES, text_with

LLAMA = "model_name_or_path: meta-llama/Llama-3.2-1B\n"
#: Files that train more than a text model, as their trainers' examples write them.
SEEING = {
    "lf.yaml": LLAMA
    + "stage: sft\nfinetuning_type: full\ntemplate: qwen2_vl\ncutoff_len: 512\n",
    "args.yaml": "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nmax_length: 512\nper_device_train_batch_size: 1\n",
    "axolotl.yaml": "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\nimage_size: 512\n",
    "run.sh": "torchrun pretrain_vlm.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64\n",
    "qwen3_vl.py": "import megatron.bridge\ndef my_config():\n    cfg = _pretrain_common()\n    return cfg\n",
    "config.json": '{"model_type": "llama", "vision_config": {"depth": 32}}',
}


@pytest.mark.parametrize("name", SEEING)
def test_a_tower_is_not_dropped_in_silence(name: str, tmp_path: Path) -> None:
    """The reader is told that the part that sees is missing, or has to ask for the text model alone."""
    path = tmp_path / name
    path.write_text(SEEING[name])
    recipe = recipes.read(recipes.document_of(path))
    assert any("sees or hears" in one.hint for one in recipe.lost)


@together("form", sorted(EXAMPLES))
def test_models_of_text_have_none(form: str, tmp_path: Path) -> None:
    """No example of a text model's training is taken for another one."""
    example = EXAMPLES[form]
    path = tmp_path / example.name
    path.write_text(text_with(example))
    recipe = recipes.read(recipes.document_of(path))
    assert not any("sees or hears" in one.hint for one in recipe.lost)


def test_a_models_file_says_what_is_left_out(tmp_path: Path) -> None:
    """A tower beside the text model is named among the notes of a scenario."""
    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    config = {
        "model_type": "llama",
        "text_config": text,
        "vision_config": {"depth": 32},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert left_out(path) == ("vision_config",)
    path.write_text(json.dumps(text))
    assert left_out(path) == ()
