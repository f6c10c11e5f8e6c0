"""Models: named, read from Hugging Face, or inline; complete or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model
from tests.sample import together

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
    "activation_function": "gelu_new",
}


def from_config(folder: Path, config: Any, **inline: Any) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return load_model(Model(file=str(path), **inline))


def shape(spec: ModelSpec) -> dict[str, Any]:
    return {key: value for key, value in vars(spec).items() if key != "name"}


def test_a_llama_config_is_the_named_model(tmp_path: Path) -> None:
    """config.json of Llama 3 8B and models/llama3-8b.toml say the same; foreign keys of Hugging Face are passed over."""
    assert shape(from_config(tmp_path, LLAMA)) == shape(
        load_model(Model(name="llama3-8b"))
    )


def test_a_gpt2_config_is_the_named_model(tmp_path: Path) -> None:
    """GPT-2's defaults: tied head, inner width four times the outer, GELU, biases, learned positions."""
    assert shape(from_config(tmp_path, GPT2)) == shape(
        load_model(Model(name="gpt2-small"))
    )


def test_a_mixtral_config_has_experts(tmp_path: Path) -> None:
    """Eight experts, two per token, unless the file says otherwise."""
    spec = from_config(
        tmp_path, LLAMA | {"model_type": "mixtral", "num_local_experts": 16}
    )
    assert (spec.experts, spec.experts_per_token, spec.gated) == (16, 2, True)


@together(
    ("change", "text"),
    [
        ({"model_type": "lama"}, 'did you mean "llama"'),
        ({"model_type": "t5"}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"hidden_act": "tanhh"}, "hidden_act"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0"),
        ({"num_key_value_heads": 0}, "kv_heads: found 0"),
        ({"hidden_size": "wide"}, "hidden_size: found 'wide'"),
        ({"hidden_size": 4097}, "a multiple of heads"),
        ({"head_dim": 127}, "an even number"),
        ({"num_key_value_heads": 5}, "a divisor of heads"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    """Nothing is guessed for a family or an activation that is not known."""
    with pytest.raises(InputError, match=text):
        from_config(tmp_path, LLAMA | change)


def test_a_mistral_config_has_its_own_default(tmp_path: Path) -> None:
    """Eight key heads where the file says nothing; as many as query heads in a llama's."""
    bare = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    heads = [
        from_config(tmp_path, bare | {"model_type": kind}).kv_heads
        for kind in ("mistral", "mixtral", "llama")
    ]
    assert heads == [8, 8, 32]


def test_biases_of_attention_and_feed_forward_come_together(tmp_path: Path) -> None:
    """Both or neither: a model has one `bias`."""
    assert from_config(
        tmp_path, LLAMA | {"attention_bias": True, "mlp_bias": True}
    ).bias


def test_every_missing_key_of_a_config_is_named(tmp_path: Path) -> None:
    """By the name it has in that file."""
    with pytest.raises(InputError) as caught:
        from_config(
            tmp_path,
            {
                "model_type": "gpt2",
                "n_embd": "x",
                "vocab_size": 1,
                "activation_function": "tan",
            },
        )
    wrong = {"n_embd", "n_layer", "n_head", "n_positions", "activation_function"}
    assert {mistake.key for mistake in caught.value.mistakes} == wrong


def test_inline_keys_replace_those_of_a_named_model() -> None:
    """A what-if on the model: fewer layers, the rest as it was."""
    base = load_model(Model(name="llama3-8b"))
    assert shape(load_model(Model(name="llama3-8b", layers=4))) == shape(base) | {
        "layers": 4
    }


def test_inline_defaults_are_a_llama_s() -> None:
    """Gated SiLU, RMS norm, rotary positions, no biases, as many key heads as query heads."""
    spec = load_model(
        Model(kind="transformer", hidden=64, layers=2, heads=4, ffn=128, vocab=100)
    )
    assert (spec.kv_heads, spec.head_dim, spec.gated, spec.activation, spec.norm) == (
        4,
        16,
        True,
        "silu",
        "rms",
    )
    assert spec.rotary and not spec.bias and not spec.tied_embeddings


@together(
    ("section", "keys"),
    [
        (
            Model(kind="transformer", hidden=64),
            {"model.layers", "model.heads", "model.ffn", "model.vocab"},
        ),
        (Model(kind="mlp"), {"model.sizes"}),
        (Model(kind="mlp", sizes=(4,)), {"model.sizes"}),
        (Model(kind="mlp", sizes=(4, 4), heads=2), {"model.heads"}),
        (Model(kind="resnet", layers=34), {"model.layers"}),
        (
            Model(name="llama3-8b", experts=2, experts_per_token=3),
            {"model.experts_per_token"},
        ),
        (Model(name="llama3-8b", experts_per_token=3), {"model.experts_per_token"}),
        (Model(name="llama3-8b", positions="learned"), {"model.max_positions"}),
        (Model(name="llama3-9b"), {"model.name"}),
    ],
)
def test_an_impossible_model_is_refused(section: Model, keys: set[str]) -> None:
    """Missing keys, keys of another kind, numbers that do not fit each other."""
    with pytest.raises(InputError) as caught:
        load_model(section, "a.toml")
    assert {mistake.key for mistake in caught.value.mistakes} == keys


@together("text", [None, "{", "[]", "kind = "])
@together("name", ["config.json", "model.toml"])
def test_a_model_file_that_cannot_be_read_is_an_input_error(
    tmp_path: Path, name: str, text: str | None
) -> None:
    """Missing, not JSON, not TOML, or not a table."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError):
        load_model(Model(file=str(path)))
