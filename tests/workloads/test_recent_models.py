"""Configurations of models of 2025 and 2026: sizes as their makers print them, and reasons for what is not read."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.models.counts import active_parameters, total_parameters
from prestep.workloads.models.model import ModelSpec, load_model
from tests.workloads.small import TRANSFORMER, lowered, ops

LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
APERTUS = LLAMA | {
    "model_type": "apertus",
    "intermediate_size": 21504,
    "vocab_size": 131072,
    "hidden_act": "xielu",
}
LING_LITE = {
    "model_type": "bailing_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "vocab_size": 126464,
    "tie_word_embeddings": False,
}
GRANITE = {
    "model_type": "granitemoehybrid",
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 62,
    "num_experts_per_tok": 6,
    "vocab_size": 100352,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "tie_word_embeddings": True,
    "num_hidden_layers": 40,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
}
LFM2 = {
    "model_type": "lfm2_moe",
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_dense_layers": 2,
    "conv_L_cache": 3,
    "vocab_size": 65536,
    "tie_word_embeddings": True,
    "layer_types": ["conv", "conv", "full_attention"] * 8,
}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "bias": False,
    "alibi": False,
    "vocab_size": 65024,
}
NEOX = {
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
}
DEEPSEEK = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
#: What a token meets of Granite by hand, in billions: projections of 36 scans into z, x, B, C and steps and back, four
#: attentions, six experts and two experts' width more in 40 layers, the embedding. Its card says 1.
SCANS = 36 * 1536 * (2 * 3072 + 2 * 128 + 48 + 3072)
ATTENTIONS = 4 * 1536 * 128 * (12 + 2 * 4 + 12)
EXPERTS = 40 * 3 * 1536 * 512 * (6 + 2)
BY_HAND = (SCANS + ATTENTIONS + EXPERTS + 100352 * 1536) / 1e9
#: Billions of parameters by their makers' model cards, and of those that a token meets.
PUBLISHED = {
    "apertus": (APERTUS, 8.05, 8.05),
    "ling": (LING_LITE, 16.8, 2.75),
    "granite": (GRANITE, 7, BY_HAND),
}


#: Configurations, the parameters of transformers 5.24's model of each, and its buffers that correct a router's choice.
COUNTED: dict[str, tuple[dict[str, Any], int, int]] = {
    "apertus": (APERTUS, 8_053_338_176, 0),
    "granite": (GRANITE, 6_750_170_688, 0),
    "smollm3": (
        {"model_type": "smollm3", "hidden_size": 2048, "vocab_size": 128256}
        | {"num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 36}
        | {"intermediate_size": 11008, "tie_word_embeddings": True},
        3_075_098_624,
        0,
    ),
    "gemma3": (
        {"model_type": "gemma3_text", "num_hidden_layers": 34}
        | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
        | {"hidden_size": 2560, "intermediate_size": 10240, "vocab_size": 262208},
        3_880_263_168,
        0,
    ),
    "lfm2": (LFM2, 8_327_334_912, 22 * 32),
    "falcon-7b": (FALCON, 6_921_720_704, 0),
    "falcon-40b": (
        FALCON
        | {"hidden_size": 8192, "num_hidden_layers": 60}
        | {"num_attention_heads": 128, "num_kv_heads": 8}
        | {"new_decoder_architecture": True},
        41_303_293_952,
        0,
    ),
    "gpt-neox": ({"model_type": "gpt_neox", **NEOX}, 20_554_567_680, 0),
    "phi": (
        {"model_type": "phi", "hidden_size": 2048, "num_hidden_layers": 24}
        | {"num_attention_heads": 32, "intermediate_size": 8192, "vocab_size": 51200},
        1_418_270_720,
        0,
    ),
    "olmo3": (LLAMA | {"model_type": "olmo3"}, 8_030_425_088, 0),
    "exaone4": (LLAMA | {"model_type": "exaone4"}, 8_030_269_440, 0),
    "deepseek_v32": (
        DEEPSEEK | {"model_type": "deepseek_v32"},
        671_877_929_216,
        58 * 256,
    ),
    "glm_moe_dsa": (
        DEEPSEEK | {"model_type": "glm_moe_dsa"},
        671_877_929_216,
        58 * 256,
    ),
}


def spec(folder: Path, config: dict[str, Any], **more: str) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    tables = {
        "cluster": {"name": "dgx-h100"},
        "model": {"file": str(path), **more},
        "training": {"framework": "megatron", "seq_len": 2048},
        "parallel": {"dp": 8},
    }
    return load_model(parse_scenario(tables, "test").model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_model_cards(name: str, tmp_path: Path) -> None:
    """To the last digit that a card prints."""
    config, total, active = PUBLISHED[name]
    made = spec(tmp_path, config)
    digits = len(str(total).partition(".")[2])
    assert round(total_parameters(made) / 1e9, digits) == total
    assert active_parameters(made) / 1e9 == pytest.approx(active, rel=0.03)


def test_windows_of_three_layers_in_four(tmp_path: Path) -> None:
    """OLMo 3: every fourth layer sees all tokens."""
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    olmo = LLAMA | {"model_type": "olmo3", "layer_types": kinds, "sliding_window": 4096}
    made = spec(tmp_path, olmo)
    assert (made.window, made.window_every, made.qk_norm) == (4096, 4, True)
    kinds.reverse()
    with pytest.raises(InputError, match="layer_types"):
        spec(tmp_path, olmo)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"framework": "megatron"}, "cap neither scores"),
        ({"framework": "pytorch-eager"}, "no other fused kernel"),
    ],
)
def test_caps_that_no_kernel_has_are_refused(
    keys: dict[str, Any], match: str, tmp_path: Path
) -> None:
    """Gemma 2's scores: only FlashAttention 2 caps them in its kernel."""
    made = spec(tmp_path, LLAMA | {"model_type": "gemma2", "head_dim": 128})
    assert (made.window, made.window_every, made.norms) == (4096, 2, "around")
    model = {"file": str(tmp_path / "config.json"), "layers": 2}
    tables = {"cluster": {"name": "dgx-h100", "gpus": 1}, "model": model}
    tables["training"] = {"seq_len": 2048, **keys}
    with pytest.raises(InputError, match=match):
        predict(parse_scenario(tables, "test"))
    tables["training"] = {"seq_len": 2048, "framework": "pytorch-eager"}
    tables["pytorch"] = {"attention": "flash2"}
    assert predict(parse_scenario(tables, "test")).step_time > 0


def test_capped_logits_are_three_passes_more_each_way() -> None:
    """Divided, through tanh, and multiplied: backward the same in the other order."""
    plain, capped = (
        [op for op in ops(lowered(TRANSFORMER | more)) if op.kernel is not None]
        for more in ({}, {"capped_logits": True})
    )
    for phase in ("forward", "backward"):
        counts = [sum(op.phase == phase for op in side) for side in (plain, capped)]
        assert counts[1] - counts[0] == 3


def test_attention_in_chunks_sees_one_of_them(tmp_path: Path) -> None:
    """Llama 4: windows of a chunk, up to whose length there is no difference; beyond it the scenario is refused."""
    llama4 = LLAMA | {"model_type": "llama4_text", "intermediate_size_mlp": 16384}
    made = spec(tmp_path, llama4)
    assert (made.window, made.window_every, made.chunked) == (8192, 4, True)
    path = str(tmp_path / "config.json")
    tables: dict[str, Any] = {
        "cluster": {"name": "dgx-h100"},
        "model": {"file": path, "layers": 4},
        "parallel": {"dp": 8},
    }
    for length, fits in ((8192, True), (8193, False)):
        tables["training"] = {"framework": "megatron", "seq_len": length}
        with nullcontext() if fits else pytest.raises(InputError, match="seq_len"):
            predict(parse_scenario(tables, "test"))


def test_text_models_of_those_that_see(tmp_path: Path) -> None:
    """The text model of Qwen3-VL is a Qwen3, whatever the whole is called."""
    text = LLAMA | {"model_type": "qwen3_vl_text", "head_dim": 128}
    whole = {
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": {"depth": 27},
    }
    plain = spec(tmp_path, LLAMA | {"model_type": "qwen3", "head_dim": 128})
    assert spec(tmp_path, whole) == plain


#: Layers of other families, the keys of a file that have them, and what it is said to be read as.
ALIKE: dict[str, tuple[dict[str, Any], str, str]] = {
    "attention": ({}, "llama", "attention of 32 heads, 8 of keys"),
    "experts": ({"num_local_experts": 8, "num_experts_per_tok": 2}, "mixtral", "8 exp"),
    "beside": (
        {"use_parallel_residual": True, "num_key_value_heads": None},
        "gpt_neox",
        "beside each other",
    ),
    "latent": (
        {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128}
        | {"qk_rope_head_dim": 64, "v_head_dim": 128},
        "deepseek_v2",
        "latent attention",
    ),
    "convolutions": (
        {"layer_types": ["conv", "full_attention"] * 16, "conv_L_cache": 3}
        | {"block_auto_adjust_ff_dim": False},
        "lfm2",
        "C-",
    ),
}


@pytest.mark.parametrize("blocks", ALIKE)
def test_a_new_name_of_known_blocks_is_offered_as_what_it_is_made_of(
    blocks: str, tmp_path: Path
) -> None:
    """The offer names the blocks, and reads the file when it is followed."""
    keys, family, words = ALIKE[blocks]
    config = LLAMA | keys | {"model_type": "brand_new"}
    with pytest.raises(InputError) as refusal:
        spec(tmp_path, config)
    assert f"--set model.family={family} reads" in str(refusal.value)
    assert words in str(refusal.value)
    as_own = spec(tmp_path, config | {"model_type": family})
    assert spec(tmp_path, config, family=family) == as_own


def test_what_an_offer_would_leave_out_is_named(tmp_path: Path) -> None:
    """A key that no family reads may be a block that nobody knows."""
    with pytest.raises(InputError, match="without retention_heads"):
        spec(tmp_path, LLAMA | {"model_type": "brand_new", "retention_heads": 8})


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "longcat_flash"}, "two attentions"),
        ({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}, "hea"),
        ({"model_type": "jamba"}, "Mamba-1"),
        ({"model_type": "minimax"}, "lightning attention"),
    ],
)
def test_what_is_not_read_says_why(
    config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """The block that no layer here has, and not a list of other names."""
    with pytest.raises(InputError, match=why):
        spec(tmp_path, LLAMA | config)


def test_a_text_model_has_its_familys_defaults(tmp_path: Path) -> None:
    """Gemma 3's files leave out heads and words."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    text |= {"intermediate_size": 10240, "sliding_window": 1024}
    made = spec(tmp_path, {"model_type": "gemma3", "text_config": text})
    assert made == spec(tmp_path, text)
    assert (made.heads, made.kv_heads, made.head_dim, made.vocab) == (8, 4, 256, 262208)
    assert (made.window, made.window_every, made.norms) == (1024, 6, "around")


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """To the last one; a router's correction is a buffer there, which checkpoints have too."""
    config, count, corrections = COUNTED[name]
    assert total_parameters(spec(tmp_path, config)) == count + corrections


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_the_counts_are_of_transformers_own_models(name: str) -> None:
    """The numbers above, of the library's model without memory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, count, corrections = COUNTED[name]
    kind = config["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        own = transformers.AutoModelForCausalLM.from_config(
            transformers.CONFIG_MAPPING[kind](**rest)
        )
    assert sum(p.numel() for p in own.parameters()) == count
    biases = [b for n, b in own.named_buffers() if n.endswith(("_bias", "_bias.bias"))]
    assert sum(b.numel() for b in biases) == corrections
