"""The section [model] of a scenario: what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prestep.sim.strict import key
from prestep.workloads.job import limits


@dataclass(frozen=True)
class Model:
    """What is trained: a named model, a file (TOML, a Hugging Face config.json, or Megatron-LM's arguments as .txt, .sh
    or .yaml), or inline keys beginning with kind.

    Inline keys beside name or file replace the model's own.
    """

    name: str | None = key(None, "named model; `prestep list models`")
    file: str | None = key(
        None,
        "TOML model, Hugging Face config.json, Megatron arguments or a capture",
    )
    kind: Literal["transformer", "mlp", "resnet", "program"] | None = key(
        None, "family, for a model written inline"
    )
    hidden: int | None = key(
        None, "width of the residual stream", low=1, most=limits.WIDTH
    )
    layers: int | None = key(
        None, "transformer blocks; for a resnet its depth (50)", low=1
    )
    heads: int | None = key(None, "query heads", low=1, most=limits.HEADS)
    kv_heads: int | None = key(
        None, "key and value heads; default heads", low=1, most=limits.HEADS
    )
    head_dim: int | None = key(
        None, "width of a head; default hidden / heads", low=1, most=limits.WIDTH
    )
    ffn: int | None = key(
        None,
        "width of the feed-forward layer, or of an expert without moe_ffn",
        low=1,
        most=limits.INNER_WIDTH,
        wants="dense",
    )
    vocab: int | None = key(
        None, "entries of the embedding", low=1, most=limits.VOCABULARY
    )
    gated: bool | None = key(None, "gated feed-forward (SwiGLU); default true")
    activation: Literal["silu", "gelu", "relu", "relu2"] | None = key(
        None, "default silu when gated, else gelu; mlp: relu"
    )
    tied_embeddings: bool | None = key(
        None, "head and embedding share weights; default false"
    )
    experts: int | None = key(
        None, "experts of each MoE layer; 0: dense", low=0, most=limits.EXPERTS
    )
    experts_per_token: int | None = key(
        None, "experts that see each token", low=1, most=limits.EXPERTS
    )
    moe_ffn: int | None = key(
        None, "inner width of one expert; default ffn", low=1, most=limits.INNER_WIDTH
    )
    shared_experts: int | None = key(
        None,
        "experts that see every token; default 0",
        low=0,
        most=limits.EXPERTS,
    )
    dense_layers: int | None = key(
        None, "first layers without experts; default 0", low=0
    )
    moe_every: int | None = key(None, "every n-th layer has experts; default 1", low=1)
    router_bias: bool | None = key(None, "the router has a bias; default false")
    q_lora_rank: int | None = key(
        None,
        "compressed width of queries (latent, compressed attention)",
        low=1,
        most=limits.WIDTH,
    )
    kv_lora_rank: int | None = key(
        None,
        "compressed width of keys and values (MLA)",
        low=1,
        most=limits.WIDTH,
    )
    rope_head_dim: int | None = key(
        None,
        "rotated part of a head: beside head_dim (MLA), or within it (compressed attention)",
        low=1,
        most=limits.WIDTH,
    )
    v_head_dim: int | None = key(
        None,
        "MLA: width of a value head; default head_dim",
        low=1,
        most=limits.WIDTH,
    )
    layer_pattern: str | None = key(
        None,
        "hybrids: a letter for each layer: M Mamba-2, G gated delta rule, "
        "K Kimi delta attention, * attention, - feed-forward, E experts",
    )
    mamba_heads: int | None = key(None, "Mamba-2: heads", low=1, most=limits.HEADS)
    mamba_head_dim: int | None = key(
        None, "Mamba-2: width of a head; default 64", low=1, most=limits.WIDTH
    )
    mamba_state: int | None = key(
        None, "Mamba-2: width of the state; default 128", low=1, most=limits.WIDTH
    )
    mamba_groups: int | None = key(
        None,
        "Mamba-2: groups of heads sharing B and C; default 8",
        low=1,
        most=limits.HEADS,
    )
    conv_width: int | None = key(
        None,
        "tokens of the convolution before a scan; default 4",
        low=1,
        most=limits.WIDTH,
    )
    linear_key_heads: int | None = key(
        None,
        "linear attention (gated delta rule, Kimi): key heads",
        low=1,
        most=limits.HEADS,
    )
    linear_value_heads: int | None = key(
        None,
        "linear attention: value heads; default linear_key_heads",
        low=1,
        most=limits.HEADS,
    )
    linear_key_dim: int | None = key(
        None,
        "linear attention: width of a key; default 128",
        low=1,
        most=limits.WIDTH,
    )
    linear_value_dim: int | None = key(
        None,
        "linear attention: width of a value; default 128",
        low=1,
        most=limits.WIDTH,
    )
    attention_gate: bool | None = key(
        None, "a projection gates attention's output; default false"
    )
    moe_latent: int | None = key(
        None,
        "width of tokens sent to experts; default hidden",
        low=1,
        most=limits.WIDTH,
    )
    mtp_layers: int | None = key(None, "layers of multi-token prediction", low=0)
    mtp_shared: bool | None = key(
        None,
        "they share one layer's parameters; default false",
        wants="model.mtp_layers > 1",
    )
    compress_ratios: tuple[int, ...] | None = key(
        None,
        "compressed attention: for each layer, tokens that share a key: "
        "0 (a window alone), 4 (an indexer chooses), 128 (all are seen)",
        low=0,
    )
    index_heads: int | None = key(
        None,
        "heads of the indexer; default 64",
        low=1,
        most=limits.HEADS,
    )
    index_head_dim: int | None = key(
        None,
        "width of the indexer's heads; default 128",
        low=1,
        most=limits.WIDTH,
    )
    index_topk: int | None = key(
        None,
        "keys that the indexer chooses for a query; default 512",
        low=1,
    )
    o_groups: int | None = key(
        None,
        "compressed attention: groups of output heads; default 8",
        low=1,
    )
    o_lora_rank: int | None = key(
        None,
        "compressed attention: width of a group's output; default 1024",
        low=1,
    )
    streams: int | None = key(
        None,
        "residual streams (hyper-connections); default 1",
        low=1,
    )
    hash_layers: int | None = key(
        None,
        "first layers whose experts a table chooses; default 0",
        low=0,
        wants="model.compress_ratios",
    )
    window: int | None = key(
        None,
        "tokens that attention looks back; default all, of compressed attention 128",
        low=1,
        most=limits.TOKENS,
    )
    window_every: int | None = key(
        None,
        "every n-th layer has no window",
        low=2,
    )
    sinks: bool | None = key(None, "a learned attention sink per head; default false")
    clamped: bool | None = key(
        None,
        "experts' activations are clamped (gpt-oss); default false",
        wants="model.experts > 0",
    )
    qk_norm: bool | None = key(None, "norms of queries and keys by head; default false")
    norm: Literal["rms", "layer"] | None = key(None, "normalisation; default rms")
    norm_bias: bool | None = key(
        None, "norms have a bias; default true for layer norms"
    )
    embedding_norm: bool | None = key(None, "a norm after the embedding; default false")
    bias: bool | None = key(None, "linear layers have a bias; default false, mlp: true")
    qkv_bias: bool | None = key(
        None, "queries, keys and values have a bias; default bias"
    )
    positions: Literal["rope", "learned", "alibi", "none"] | None = key(
        None, "default rope"
    )
    max_positions: int | None = key(
        None, "rows of learned positions", low=1, most=limits.TOKENS
    )
    sizes: tuple[int, ...] | None = key(
        None, "mlp: widths from input to output", low=1, most=limits.INNER_WIDTH
    )
    image_size: int | None = key(
        None, "resnet: pixels on a side; default 224", low=1, most=limits.WIDTH
    )
    classes: int | None = key(
        None, "resnet: outputs; default 1000", low=1, most=limits.WIDTH
    )
