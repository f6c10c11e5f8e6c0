"""The section [model] of a scenario: what is trained."""
# ruff: noqa: RUF009 - a key is a field, whatever makes it

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from prestep.sim.strict import key
from prestep.workloads.job import limits

#: What a key may be beside its type: None in a scenario, which need not say it; nothing (Never) in a complete model.
N = TypeVar("N")
#: A key that need not be said.
part = partial(key, None)
transformers = partial(part, wants="pytorch.modules = transformers; model.experts > 0")
#: Widths of activations, and numbers of heads.
width, heads_of = partial(part, within=limits.WIDTH), partial(part, within=limits.HEADS)


@dataclass(frozen=True)
class Keys(Generic[N]):
    """The keys of a model."""

    name: str | N = part("named model; `prestep list models`")
    file: str | N = part(
        "TOML, Hugging Face config.json, Megatron's arguments (.txt, .sh, .yaml) or a capture"
    )
    family: str | N = part("model_type that a config.json is read as")
    kind: Literal["transformer", "vit", "mlp", "resnet", "program"] | N = part(
        "family, for a model written inline"
    )
    hidden: int | N = width("width of the residual stream")
    layers: int | N = part("transformer blocks; for a resnet its depth (50)", low=1)
    heads: int | N = heads_of("query heads")
    kv_heads: int | N = heads_of("key and value heads; default heads")
    head_dim: int | N = width("width of a head; default hidden / heads")
    ffn: int | N = part(
        "width of the feed-forward layer, or of an expert without moe_ffn",
        limits.INNER_WIDTH,
        wants="dense",
    )
    vocab: int | N = part("entries of the embedding", limits.VOCABULARY)
    gated: bool | N = part("gated feed-forward (SwiGLU); default true")
    activation: Literal["silu", "gelu", "relu", "relu2", "xielu"] | N = part(
        "default silu when gated, else gelu; mlp: relu"
    )
    tied_embeddings: bool | N = part("head and embedding share weights; default false")
    experts: int | N = part(
        "experts of each MoE layer; 0: dense", limits.EXPERTS, low=0
    )
    experts_per_token: int | N = part("experts that see each token", limits.EXPERTS)
    moe_ffn: int | N = part(
        "inner width of one expert; default ffn", limits.INNER_WIDTH
    )
    shared_experts: int | N = part(
        "experts that see every token; default 0", limits.EXPERTS, low=0
    )
    shared_gate: bool | N = part(
        "a sigmoid of the token scales shared experts' output; default false",
        wants="model.shared_experts > 0",
    )
    dense_layers: int | N = part("first layers without experts; default 0", low=0)
    moe_every: int | N = part("every n-th layer has experts; default 1", low=1)
    router_bias: bool | N = part("the router has a bias; default false")
    router_narrow: bool | N = transformers("experts' weights in 16 bits; default false")
    norm_topk: bool | N = transformers("a token's weights sum to one; default true")
    q_lora_rank: int | N = width(
        "compressed width of queries (latent, compressed attention)"
    )
    kv_lora_rank: int | N = width("compressed width of keys and values (MLA)")
    rope_head_dim: int | N = width(
        "rotated part of a head: beside head_dim (MLA), or within it (compressed attention)"
    )
    v_head_dim: int | N = width("MLA: width of a value head; default head_dim")
    layer_pattern: str | N = part(
        "hybrids: a letter for each layer: M Mamba-2, G gated delta rule, "
        "K Kimi delta attention, C gated convolution, * attention, - feed-forward, E experts"
    )
    mamba_heads: int | N = heads_of("Mamba-2: heads")
    mamba_head_dim: int | N = width("Mamba-2: width of a head; default 64")
    mamba_state: int | N = width("Mamba-2: width of the state; default 128")
    mamba_groups: int | N = heads_of(
        "Mamba-2: groups of heads sharing B and C; default 8"
    )
    conv_width: int | N = width("tokens of the convolution; default 4, of C 3")
    linear_key_heads: int | N = heads_of(
        "linear attention (gated delta rule, Kimi): key heads"
    )
    linear_value_heads: int | N = heads_of(
        "linear attention: value heads; default linear_key_heads"
    )
    linear_key_dim: int | N = width("linear attention: width of a key; default 128")
    linear_value_dim: int | N = width("linear attention: width of a value; default 128")
    attention_gate: bool | N = part(
        "a projection gates attention's output; default false"
    )
    moe_latent: int | N = width("width of tokens sent to experts; default hidden")
    mtp_layers: int | N = part("layers of multi-token prediction", low=0)
    mtp_shared: bool | N = part(
        "they share one layer's parameters; default false", wants="model.mtp_layers > 1"
    )
    compress_ratios: tuple[int, ...] | N = part(
        "compressed attention: for each layer, tokens that share a key: "
        "0 (a window alone), 4 (an indexer chooses), 128 (all are seen)",
        low=0,
    )
    index_heads: int | N = heads_of("heads of the indexer; default 64")
    index_head_dim: int | N = width("width of the indexer's heads; default 128")
    index_topk: int | N = part(
        "keys that an indexer chooses for a query; default all (MLA) or 512", low=1
    )
    index_pattern: str | N = part(
        "a letter a layer: F has an indexer, S the last F's choice; default F",
        wants="model.kv_lora_rank; model.index_topk",
    )
    o_groups: int | N = part(
        "compressed attention: groups of output heads; default 8", low=1
    )
    o_lora_rank: int | N = part(
        "compressed attention: width of a group's output; default 1024", low=1
    )
    streams: int | N = part("residual streams (hyper-connections); default 1", low=1)
    hash_layers: int | N = part(
        "first layers whose experts a table chooses; default 0",
        low=0,
        wants="model.compress_ratios",
    )
    window: int | N = part(
        "tokens that attention looks back; default all, of compressed attention 128",
        limits.TOKENS,
    )
    window_every: int | N = part("every n-th layer has no window", low=2)
    chunked: bool | N = part(
        "windows are chunks of the sequence (Llama 4); default false",
        wants="model.window",
    )
    capped_scores: bool | N = part("tanh caps attention's scores; default false")
    capped_logits: bool | N = part("tanh caps logits; default false")
    sinks: bool | N = part("a learned attention sink per head; default false")
    clamped: bool | N = part(
        "experts' activations are clamped (gpt-oss); default false",
        wants="model.experts > 0",
    )
    qk_norm: bool | N = part("norms of queries and keys by head; default false")
    qk_norm_wide: bool | N = part("they norm all heads at once", wants="model.qk_norm")
    norm: Literal["rms", "rms-centred", "layer"] | N = part("default rms")
    norms: Literal["before", "behind", "around", "shared"] | N = part(
        "where, of each part; shared: one for parallel parts; default before"
    )
    parallel_parts: bool | N = part("attention beside feed-forward; default false")
    norm_bias: bool | N = part("norms have a bias; default true for layer norms")
    embedding_norm: bool | N = part("a norm after the embedding; default false")
    bias: bool | N = part("linear layers have a bias; default false, mlp: true")
    qkv_bias: bool | N = part("queries, keys and values have a bias; default bias")
    out_bias: bool | N = part("attention's output has a bias; default bias")
    head_bias: bool | N = part("the head has a bias; default false")
    positions: Literal["rope", "learned", "alibi", "none"] | N = part("default rope")
    max_positions: int | N = part("rows of learned positions", limits.TOKENS)
    sizes: tuple[int, ...] | N = part(
        "mlp: widths from input to output", limits.INNER_WIDTH
    )
    image_size: int | N = width("resnet, vit: pixels on a side; default 224")
    patch: int | N = width("vit: pixels on a side of a patch")
    classes: int | N = width("resnet, vit: outputs; default 1000")


@dataclass(frozen=True)
class Model(Keys[None]):
    """What is trained: a named model, a file, or inline keys beginning with kind, which beside those replace theirs."""
