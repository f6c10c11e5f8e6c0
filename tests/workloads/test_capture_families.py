"""Every family of config.json against transformers' model of the same configuration. Needs PyTorch.

The contract of a family: its parameters to the last one, and the floating-point operations of one forward pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lab.formats.model_flops import flops_per_token  # noqa: E402
from prestep.sim.graph.kernel import Kernel  # noqa: E402
from prestep.workloads.models import hybrid  # noqa: E402
from prestep.workloads.models.counts import total_parameters  # noqa: E402
from prestep.workloads.models.families import families  # noqa: E402
from prestep.workloads.models.model import ModelSpec, load_model  # noqa: E402
from prestep.workloads.torch.lower import lower  # noqa: E402
from tests.workloads.small import ops, scenario  # noqa: E402

pytestmark = pytest.mark.slow

SAMPLES, LENGTH = 2, 128
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "pad_token_id": 0,
}
GPT = {"n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 1000}
FEW = {"num_experts": 8, "num_experts_per_tok": 2}
ROUTED = FEW | {"moe_intermediate_size": 96}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
SHARED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "num_key_value_heads": 8,
}
INDEXED = LATENT | {"index_n_heads": 4, "index_head_dim": 32, "index_topk": 256}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "shared_expert_intermediate_size": 96,
}
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2}
#: Keys of families beside their sizes; those that are not here have none.
KEYS: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gptj": GPT | {"rotary_dim": 16},
    "codegen": GPT | {"rotary_dim": 16},
    "bloom": {"n_layer": 4, "n_head": 8},
    "mpt": {"d_model": 256, "n_layers": 4, "n_heads": 8},
    "opt": {"ffn_dim": 384, "word_embed_proj_dim": 256},
    "mixtral": LOCAL,
    "phimoe": LOCAL | {"attention_bias": True, "lm_head_bias": True},
    "minimax_m2": LOCAL | {"head_dim": 32},
    "gpt_oss": LOCAL | {"head_dim": 32},
    "granitemoe": LOCAL,
    "granitemoeshared": LOCAL | {"shared_intermediate_size": 768},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2, "head_dim": 32},
    "hunyuan_v1_dense": {"head_dim": 32},
    "ministral": {"head_dim": 32},
    "nemotron": {"head_dim": 32},
    "llama4_text": LOCAL
    | {"intermediate_size_mlp": 512, "head_dim": 32}
    | {"interleave_moe_layer_step": 2, "num_experts_per_tok": 8},  # all run there
    "olmoe": FEW,
    "flex_olmo": FEW,
    "qwen2_moe": ROUTED | {"shared_expert_intermediate_size": 192},
    "qwen3_moe": ROUTED | {"head_dim": 32},
    "exaone_moe": ROUTED | {"num_shared_experts": 2},
    "hy_v3": ROUTED | {"num_shared_experts": 2},
    "lfm2_moe": ROUTED
    | {"num_dense_layers": 1}
    | {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 96},
    "dots1": SHARED | {"head_dim": 32},
    "glm4_moe": SHARED | {"head_dim": 32, "use_qk_norm": True},
    "solar_open": SHARED | {"first_k_dense_replace": 0},
    "deepseek_v2": SHARED | LATENT,
    "deepseek_v3": SHARED | LATENT,
    "mistral4": SHARED | LATENT,
    "glm4_moe_lite": SHARED | LATENT,
    "youtu": LATENT,
    "minicpm3": LATENT,
    "deepseek_v32": SHARED | INDEXED,
    "glm_moe_dsa": SHARED | INDEXED,
    "qwen3_next": ROUTED | DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": ROUTED | DELTA,
    "kimi_linear": SHARED | LATENT | {"linear_num_heads": 4, "linear_head_dim": 32},
    "nemotron_h": MAMBA
    | {"layer_types": ["linear_attention", "full_attention", "mlp"]},
    "granitemoehybrid": LOCAL
    | {"shared_intermediate_size": 768, "mamba_n_heads": 8, "mamba_d_head": 64}
    | {"layer_types": ["mamba", "attention"] * 2},
}
#: DeepSeek-V4 has further layers of prediction, which transformers' model lacks; others are read from VL models' files.
APART = {"deepseek_v4", "kimi_k2", "qwen3_5", "qwen3_5_moe", "qwen2_vl", "qwen2_5_vl"}
KINDS = [
    kind
    for kind in families()
    if kind in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    and kind not in APART
]


def configuration(kind: str) -> Any:
    sizes = SIZES if "n_layer" not in KEYS.get(kind, {}) else {"vocab_size": 1000}
    made = transformers.CONFIG_MAPPING[kind](**sizes | KEYS.get(kind, {}))
    made._attn_implementation = made._experts_implementation = "eager"
    return made


def read(config: Any, folder: Path) -> dict[str, Any]:
    """The model that its file, as transformers saves it, is read as."""
    path = folder / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    return {"file": str(path)}


def spec(said: dict[str, Any]) -> ModelSpec:
    return load_model(scenario(said).model)


def corrections(own: Any) -> int:
    """Buffers that correct a router's choice, which checkpoints have too."""
    named = own.named_buffers()
    return sum(b.numel() for n, b in named if n.endswith(("_bias", "_bias.bias")))


def counted(own: Any) -> int:
    """Of a forward pass in products, without convolutions and the table of rotations."""
    from torch.utils.flop_counter import FlopCounterMode

    words = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        own(words + torch.arange(LENGTH), use_cache=False)
    by_module = counter.get_flop_counts()
    rotations = (c for name, c in by_module.items() if name.endswith("rotary_emb"))
    aside = sum(sum(c.values()) for c in rotations)
    whole = by_module["Global"]
    return sum(n for op, n in whole.items() if "convolution" not in str(op)) - aside


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_transformers_model(kind: str, tmp_path: Path) -> None:
    config = configuration(kind)
    with torch.device("meta"):
        own = transformers.AutoModelForCausalLM.from_config(config)
    theirs = sum(p.numel() for p in own.parameters()) + corrections(own)
    assert total_parameters(spec(read(config, tmp_path))) == theirs


#: Models that see, whose text model alone is read.
SEEING = [
    *("cohere2_vision", "gemma3", "glm4v", "internvl", "kimi_k25"),
    *("lfm2_vl", "llama4", "llava", "mistral3", "qwen2_5_vl", "qwen3_5_moe"),
    *("qwen3_vl", "qwen3_vl_moe"),
]


@pytest.mark.parametrize("kind", SEEING)
def test_parameters_of_text_models_are_those_without_towers(
    kind: str, tmp_path: Path
) -> None:
    """Of the library's usual sizes, with the head tied as the whole says."""
    config = transformers.CONFIG_MAPPING[kind]()
    with torch.device("meta"):
        own = transformers.AutoModelForImageTextToText.from_config(config)
    named = own.named_parameters()
    words = sum(p.numel() for n, p in named if "language_model" in n or "head" in n)
    towers = [p for n, p in own.named_parameters() if "vision" in n and "head" in n]
    words -= sum(p.numel() for p in towers)
    assert total_parameters(spec(read(config, tmp_path))) == words + corrections(own)


def in_full(kernel: Kernel) -> float:
    """Operations of a kernel; a causal one leaves out half of its scores."""
    return (kernel.flops or 0.0) * (2 if "attention" in kernel.kind else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_flops_of_a_forward_pass_are_those_that_pytorch_counts(
    kind: str, tmp_path: Path
) -> None:
    """By the model's formula and by the kernels that run; what scans compute between their products is not counted."""
    config = configuration(kind)
    said = read(config, tmp_path)
    m = spec(said)
    if set(m.layer_pattern) & set(hybrid.SCANS):
        pytest.skip("PyTorch's scans are written out, in other products than kernels'")
    torch.set_num_threads(1)
    theirs = counted(transformers.AutoModelForCausalLM.from_config(config))
    # Scores of an indexer's heads are summed by a product there, and by elementwise kernels here.
    indexed = m.layers * m.index_heads if m.indexed else 0
    theirs -= 2 * SAMPLES * LENGTH**2 * indexed
    formula = flops_per_token(m, LENGTH, causal=False) / 3 * SAMPLES * LENGTH
    assert formula == theirs
    if m.positions == "alibi" or m.indexed:
        return  # PyTorch's own blocks have no alibi, and kernels of chosen keys compute other scores
    attention = {"attention": "flash2"} if m.capped_scores else None
    job = scenario(said, pytorch=attention)
    low = lower(job, load_model(job.model))
    forward = [op.kernel for op in ops(low) if op.phase == "forward" and op.kernel]
    assert sum(in_full(k) for k in forward if "convolution" not in k.kind) == theirs
