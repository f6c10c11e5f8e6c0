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
        "TOML model, Hugging Face config.json, Megatron arguments or a recorded program (.capture), relative to the "
        "scenario",
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
        "inner width of the feed-forward layer; of one expert where moe_ffn is not said",
        low=1,
        most=limits.INNER_WIDTH,
        wants="dense",
    )
    vocab: int | None = key(
        None, "entries of the embedding", low=1, most=limits.VOCABULARY
    )
    gated: bool | None = key(
        None, "gated feed-forward (three matrices, SwiGLU); default true"
    )
    activation: Literal["silu", "gelu", "relu", "relu2"] | None = key(
        None, "relu2: squared ReLU; default silu when gated, else gelu; mlp: relu"
    )
    tied_embeddings: bool | None = key(
        None, "output head shares the embedding; default false"
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
        "experts of the same width that see every token; default 0",
        low=0,
        most=limits.EXPERTS,
    )
    dense_layers: int | None = key(
        None, "first layers that have no experts; default 0", low=0
    )
    moe_every: int | None = key(
        None, "only every n-th layer has experts; default 1: every layer", low=1
    )
    router_bias: bool | None = key(None, "the router has a bias; default false")
    q_lora_rank: int | None = key(
        None,
        "latent and compressed attention: width that queries are compressed to; default none",
        low=1,
        most=limits.WIDTH,
    )
    kv_lora_rank: int | None = key(
        None,
        "latent attention (MLA): width that keys and values are compressed to",
        low=1,
        most=limits.WIDTH,
    )
    rope_head_dim: int | None = key(
        None,
        "rotated part of a head: of latent attention beside head_dim, of compressed attention within it",
        low=1,
        most=limits.WIDTH,
    )
    v_head_dim: int | None = key(
        None,
        "latent attention: width of a value head; default head_dim",
        low=1,
        most=limits.WIDTH,
    )
    layer_pattern: str | None = key(
        None,
        "hybrids: a letter for each layer, which has one part: M Mamba-2, G gated delta rule, K Kimi delta attention, "
        "* attention, - feed-forward, E experts; default: layers of attention and feed-forward",
    )
    mamba_heads: int | None = key(None, "Mamba-2: heads", low=1, most=limits.HEADS)
    mamba_head_dim: int | None = key(
        None, "Mamba-2: width of a head; default 64", low=1, most=limits.WIDTH
    )
    mamba_state: int | None = key(
        None, "Mamba-2: width of a head's state; default 128", low=1, most=limits.WIDTH
    )
    mamba_groups: int | None = key(
        None,
        "Mamba-2: groups of heads that share B and C; default 8",
        low=1,
        most=limits.HEADS,
    )
    conv_width: int | None = key(
        None,
        "tokens that the convolution before a scan sees; default 4",
        low=1,
        most=limits.WIDTH,
    )
    linear_key_heads: int | None = key(
        None,
        "gated delta rule and Kimi delta attention: heads of keys",
        low=1,
        most=limits.HEADS,
    )
    linear_value_heads: int | None = key(
        None,
        "heads of values, of linear attention; default linear_key_heads",
        low=1,
        most=limits.HEADS,
    )
    linear_key_dim: int | None = key(
        None,
        "width of a key of linear attention; default 128",
        low=1,
        most=limits.WIDTH,
    )
    linear_value_dim: int | None = key(
        None,
        "width of a value of linear attention; default 128",
        low=1,
        most=limits.WIDTH,
    )
    attention_gate: bool | None = key(
        None, "attention's output is gated by a projection of its own; default false"
    )
    moe_latent: int | None = key(
        None,
        "width to which tokens are projected before they travel to experts, and from which after; default hidden",
        low=1,
        most=limits.WIDTH,
    )
    mtp_layers: int | None = key(
        None, "further layers that predict later tokens (multi-token prediction)", low=0
    )
    mtp_shared: bool | None = key(
        None,
        "those further layers are one that runs again, with parameters for once; default false",
        wants="model.mtp_layers > 1",
    )
    compress_ratios: tuple[int, ...] | None = key(
        None,
        "compressed attention (DeepSeek-V4): for each layer how many tokens share a compressed key: 0 none (a window "
        "alone), 4 chosen by an indexer, 128 all are seen; one more for multi-token prediction, default 0",
        low=0,
    )
    index_heads: int | None = key(
        None,
        "compressed attention: heads of the indexer; default 64",
        low=1,
        most=limits.HEADS,
    )
    index_head_dim: int | None = key(
        None,
        "compressed attention: width of the indexer's heads; default 128",
        low=1,
        most=limits.WIDTH,
    )
    index_topk: int | None = key(
        None,
        "compressed attention: compressed keys that the indexer chooses for a query; default 512",
        low=1,
    )
    o_groups: int | None = key(
        None,
        "compressed attention: groups of heads that are projected apart; default 8",
        low=1,
    )
    o_lora_rank: int | None = key(
        None,
        "compressed attention: width that a group's output is compressed to; default 1024",
        low=1,
    )
    streams: int | None = key(
        None,
        "residual streams, mixed around attention and feed-forward (hyper-connections); default 1",
        low=1,
    )
    hash_layers: int | None = key(
        None,
        "first layers whose experts the token's number chooses, by a table; default 0",
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
        "every n-th layer sees all tokens in spite of the window; default none does",
        low=2,
    )
    sinks: bool | None = key(
        None, "a learned attention sink for every head; default false"
    )
    clamped: bool | None = key(
        None,
        "what experts' activations take is clamped first (gpt-oss, swiglu_limit); default false",
        wants="model.experts > 0",
    )
    qk_norm: bool | None = key(
        None, "norms of queries and keys, head by head; default false"
    )
    norm: Literal["rms", "layer"] | None = key(None, "normalisation; default rms")
    norm_bias: bool | None = key(
        None, 'norms have a bias; default true for norm = "layer"'
    )
    embedding_norm: bool | None = key(None, "a norm after the embedding; default false")
    bias: bool | None = key(None, "linear layers have a bias; default false, mlp: true")
    qkv_bias: bool | None = key(
        None, "queries, keys and values have a bias; default bias"
    )
    positions: Literal["rope", "learned", "alibi", "none"] | None = key(
        None, "position information; default rope"
    )
    max_positions: int | None = key(
        None, "rows of the learned position embedding", low=1, most=limits.TOKENS
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
