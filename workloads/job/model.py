"""The section [model] of a scenario: what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prestep.sim.strict import key
from prestep.workloads.job import limits

#: What a key may be beside its type: None in a scenario, which need not say it; nothing (Never) in a complete model.
N = TypeVar("N")


@dataclass(frozen=True)
class Keys(Generic[N]):
    """The keys of a model."""

    name: str | N = key(None, "named model; `prestep list models`")
    file: str | N = key(
        None, "TOML model, Hugging Face config.json, Megatron arguments or a capture"
    )
    kind: Literal["transformer", "vit", "mlp", "resnet", "program"] | N = key(
        None, "family, for a model written inline"
    )
    hidden: int | N = key(None, "width of the residual stream", limits.WIDTH)
    layers: int | N = key(
        None, "transformer blocks; for a resnet its depth (50)", low=1
    )
    heads: int | N = key(None, "query heads", limits.HEADS)
    kv_heads: int | N = key(None, "key and value heads; default heads", limits.HEADS)
    head_dim: int | N = key(
        None, "width of a head; default hidden / heads", limits.WIDTH
    )
    ffn: int | N = key(
        None,
        "width of the feed-forward layer, or of an expert without moe_ffn",
        limits.INNER_WIDTH,
        wants="dense",
    )
    vocab: int | N = key(None, "entries of the embedding", limits.VOCABULARY)
    gated: bool | N = key(None, "gated feed-forward (SwiGLU); default true")
    activation: Literal["silu", "gelu", "relu", "relu2"] | N = key(
        None, "default silu when gated, else gelu; mlp: relu"
    )
    tied_embeddings: bool | N = key(
        None, "head and embedding share weights; default false"
    )
    experts: int | N = key(
        None, "experts of each MoE layer; 0: dense", limits.EXPERTS, low=0
    )
    experts_per_token: int | N = key(
        None, "experts that see each token", limits.EXPERTS
    )
    moe_ffn: int | N = key(
        None, "inner width of one expert; default ffn", limits.INNER_WIDTH
    )
    shared_experts: int | N = key(
        None, "experts that see every token; default 0", limits.EXPERTS, low=0
    )
    dense_layers: int | N = key(None, "first layers without experts; default 0", low=0)
    moe_every: int | N = key(None, "every n-th layer has experts; default 1", low=1)
    router_bias: bool | N = key(None, "the router has a bias; default false")
    q_lora_rank: int | N = key(
        None, "compressed width of queries (latent, compressed attention)", limits.WIDTH
    )
    kv_lora_rank: int | N = key(
        None, "compressed width of keys and values (MLA)", limits.WIDTH
    )
    rope_head_dim: int | N = key(
        None,
        "rotated part of a head: beside head_dim (MLA), or within it (compressed attention)",
        limits.WIDTH,
    )
    v_head_dim: int | N = key(
        None, "MLA: width of a value head; default head_dim", limits.WIDTH
    )
    layer_pattern: str | N = key(
        None,
        "hybrids: a letter for each layer: M Mamba-2, G gated delta rule, "
        "K Kimi delta attention, * attention, - feed-forward, E experts",
    )
    mamba_heads: int | N = key(None, "Mamba-2: heads", limits.HEADS)
    mamba_head_dim: int | N = key(
        None, "Mamba-2: width of a head; default 64", limits.WIDTH
    )
    mamba_state: int | N = key(
        None, "Mamba-2: width of the state; default 128", limits.WIDTH
    )
    mamba_groups: int | N = key(
        None, "Mamba-2: groups of heads sharing B and C; default 8", limits.HEADS
    )
    conv_width: int | N = key(
        None, "tokens of the convolution before a scan; default 4", limits.WIDTH
    )
    linear_key_heads: int | N = key(
        None, "linear attention (gated delta rule, Kimi): key heads", limits.HEADS
    )
    linear_value_heads: int | N = key(
        None, "linear attention: value heads; default linear_key_heads", limits.HEADS
    )
    linear_key_dim: int | N = key(
        None, "linear attention: width of a key; default 128", limits.WIDTH
    )
    linear_value_dim: int | N = key(
        None, "linear attention: width of a value; default 128", limits.WIDTH
    )
    attention_gate: bool | N = key(
        None, "a projection gates attention's output; default false"
    )
    moe_latent: int | N = key(
        None, "width of tokens sent to experts; default hidden", limits.WIDTH
    )
    mtp_layers: int | N = key(None, "layers of multi-token prediction", low=0)
    mtp_shared: bool | N = key(
        None,
        "they share one layer's parameters; default false",
        wants="model.mtp_layers > 1",
    )
    compress_ratios: tuple[int, ...] | N = key(
        None,
        "compressed attention: for each layer, tokens that share a key: "
        "0 (a window alone), 4 (an indexer chooses), 128 (all are seen)",
        low=0,
    )
    index_heads: int | N = key(None, "heads of the indexer; default 64", limits.HEADS)
    index_head_dim: int | N = key(
        None, "width of the indexer's heads; default 128", limits.WIDTH
    )
    index_topk: int | N = key(
        None, "keys that the indexer chooses for a query; default 512", low=1
    )
    o_groups: int | N = key(
        None, "compressed attention: groups of output heads; default 8", low=1
    )
    o_lora_rank: int | N = key(
        None, "compressed attention: width of a group's output; default 1024", low=1
    )
    streams: int | N = key(
        None, "residual streams (hyper-connections); default 1", low=1
    )
    hash_layers: int | N = key(
        None,
        "first layers whose experts a table chooses; default 0",
        low=0,
        wants="model.compress_ratios",
    )
    window: int | N = key(
        None,
        "tokens that attention looks back; default all, of compressed attention 128",
        limits.TOKENS,
    )
    window_every: int | N = key(None, "every n-th layer has no window", low=2)
    sinks: bool | N = key(None, "a learned attention sink per head; default false")
    clamped: bool | N = key(
        None,
        "experts' activations are clamped (gpt-oss); default false",
        wants="model.experts > 0",
    )
    qk_norm: bool | N = key(None, "norms of queries and keys by head; default false")
    norm: Literal["rms", "layer"] | N = key(None, "normalisation; default rms")
    norm_bias: bool | N = key(None, "norms have a bias; default true for layer norms")
    embedding_norm: bool | N = key(None, "a norm after the embedding; default false")
    bias: bool | N = key(None, "linear layers have a bias; default false, mlp: true")
    qkv_bias: bool | N = key(None, "queries, keys and values have a bias; default bias")
    positions: Literal["rope", "learned", "alibi", "none"] | N = key(
        None, "default rope"
    )
    max_positions: int | N = key(None, "rows of learned positions", limits.TOKENS)
    sizes: tuple[int, ...] | N = key(
        None, "mlp: widths from input to output", limits.INNER_WIDTH
    )
    image_size: int | N = key(
        None, "resnet, vit: pixels on a side; default 224", limits.WIDTH
    )
    patch: int | N = key(None, "vit: pixels on a side of a patch", limits.WIDTH)
    classes: int | N = key(None, "resnet, vit: outputs; default 1000", limits.WIDTH)


@dataclass(frozen=True)
class Model(Keys[None]):
    """What is trained: a named model, a file (TOML, a Hugging Face config.json, or Megatron-LM's arguments as .txt, .sh
    or .yaml), or inline keys beginning with kind.

    Inline keys beside name or file replace the model's own.
    """
