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


BRIDGE = """import megatron.bridge
def {name}_sft_config():
    cfg = _sft_common_vlm()
    cfg.model = AutoBridge.from_hf_pretrained("{model}").to_megatron_provider()
    cfg.model.temporal_patch_dim = 1
    cfg.model.freeze_sound_encoder = True
    cfg.model.freeze_vision_model = True
    cfg.dataset = Data(seq_length=4096)
    return cfg
"""


def test_a_known_text_model_beside_a_tower_loads(tmp_path: Path) -> None:
    """Nemotron 3 Nano Omni: the sizes of what is left out are told (layers of 12 x 1280 squared, a projection)."""
    path = tmp_path / "omni.py"
    model = "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16"
    path.write_text(BRIDGE.format(name="omni", model=model))
    recipe = recipes.read(recipes.document_of(path))
    assert recipe.get("model.name") == "nemotron-3-nano-30b-a3b"
    assert not recipe.lost and not recipe.mistakes
    patches = 3 * 16**2 * 1280
    tower = 32 * 12 * 1280**2 + 5120 * 20480 + 20480 * 2688 + patches
    assert any(f"{tower / 1e6:.0f} million" in text for text in recipe.assumed)


def test_a_family_that_is_not_simulated_says_why(tmp_path: Path) -> None:
    path = tmp_path / "gemma4_vl.py"
    path.write_text(BRIDGE.format(name="gemma4", model="google/gemma-4-26B-A4B-it"))
    recipe = recipes.read(recipes.document_of(path))
    assert "heads of another width" in recipe.needs["model"].hint


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
