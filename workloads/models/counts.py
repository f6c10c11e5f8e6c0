"""Parameters of a transformer, by layer, and floating-point operations of its attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.extras import lazily
from prestep.workloads.models import hybrid

with lazily():
    from prestep.workloads.models import compressed, indexed

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec


def norm_parameters(m: ModelSpec, width: int) -> int:
    """Of a norm over that width."""
    return width * (2 if m.norm_bias else 1)


def layer_norms(m: ModelSpec, parts: int) -> int:
    """Parameters of the norms of a layer of so many parts: before, behind or around each, or one for all."""
    norms = {"around": 2 * parts, "shared": 1}.get(m.norms, parts)
    return norms * norm_parameters(m, m.hidden)


def attention_parameters(m: ModelSpec, layer: int = 0) -> int:
    """Projections with their biases, norms inside the attention, and sinks."""
    if m.compressed:
        return compressed.parameters(m, m.ratio_of(layer))
    total = attention_weights(m, layer)
    if m.latent:  # norms of compressed states, and of the indexer's keys
        norm = 2 * m.index_head_dim if m.ratio_of(layer) else 0
        return total + m.q_lora_rank + m.kv_lora_rank + norm
    q, kv = m.heads * m.query_dim, m.kv_heads * m.head_dim
    total += (2 * q if m.attention_gate else q) + 2 * kv if m.qkv_bias else 0
    total += m.hidden if m.out_bias else 0
    normed = (m.heads + m.kv_heads if m.qk_norm_wide else 2) if m.qk_norm else 0
    return total + normed * m.head_dim + (m.heads if m.sinks else 0)


def feed_forward_parameters(m: ModelSpec, width: int, hidden: int = 0) -> int:
    """Of one feed-forward network of that inner width, and of another outer one than the model's."""
    outer = hidden or m.hidden
    bias = width * (2 if m.gated else 1) + outer if m.bias else 0
    curve = 2 if m.activation == "xielu" else 0  # of its two halves
    return outer * width * (3 if m.gated else 2) + bias + curve


def router_parameters(m: ModelSpec) -> int:
    """Of the projection that scores experts."""
    return m.hidden * m.experts + (m.experts if m.router_bias else 0)


def layer_parameters(
    m: ModelSpec, experts: bool, used: int | None = None, layer: int = 0
) -> int:
    """Parameters of a layer, with or without experts, of which ``used`` count (default all)."""
    total = attention_parameters(m, layer) + layer_norms(m, 2)
    if m.streams > 1:
        total += 2 * compressed.connection_parameters(m)
    if not experts:
        return total + feed_forward_parameters(m, m.ffn)
    return total + expert_parameters(m, used)


def expert_parameters(m: ModelSpec, used: int | None = None) -> int:
    """Of a layer's experts, of which ``used`` count (default all), their router, and what narrows tokens for them."""
    total = 2 * m.hidden * m.moe_latent
    if m.shared_experts:
        shared = replace(m, bias=False)  # whatever routed experts have
        total += feed_forward_parameters(shared, m.moe_ffn * m.shared_experts)
        total += m.hidden if m.shared_gate else 0
    counted = m.experts if used is None else used
    routed = counted * feed_forward_parameters(m, m.moe_ffn, m.routed_hidden)
    return total + router_parameters(m) + routed


def parameters_at(m: ModelSpec, layer: int) -> int:
    """Of the layer of that index."""
    part = m.part_of(layer)
    if not part:
        return layer_parameters(m, m.has_experts(layer), layer=layer)
    norm = layer_norms(m, 1)
    if part == hybrid.ATTENTION:
        return norm + attention_parameters(m)
    if part == hybrid.FEED_FORWARD:
        return norm + feed_forward_parameters(m, m.ffn)
    if part == hybrid.EXPERTS:
        return norm + expert_parameters(m)
    return norm + hybrid.parameters(m, part)


def prediction_parameters(m: ModelSpec) -> int:
    """Of one further layer of multi-token prediction: three norms, the projection of two states to one, and a layer."""
    return (
        3 * norm_parameters(m, m.hidden)
        + 2 * m.hidden**2
        + layer_parameters(m, bool(m.experts), layer=m.layers)
        + (compressed.contraction_parameters(m) if m.streams > 1 else 0)
    )


def stage_parameters(
    m: ModelSpec, layers: int | Iterable[int], first: bool, last: bool
) -> int:
    """Parameters of a transformer's stage: its blocks (their number, from the first, or their indices), the embedding
    if first, norm, head and multi-token prediction if last."""
    indices = range(layers) if isinstance(layers, int) else layers
    total = sum(parameters_at(m, i) for i in indices)
    if first:
        total += m.vocab * m.hidden + (
            norm_parameters(m, m.hidden) if m.embedding_norm else 0
        )
        total += m.max_positions * m.hidden if m.positions == "learned" else 0
        if m.patch:  # a convolution, the class's token and positions
            total += m.hidden * (3 * m.patch**2 + 2 + m.tokens)
    if last:
        total += norm_parameters(m, m.hidden) + (m.vocab if m.head_bias else 0)
        total += 0 if m.tied_embeddings else m.vocab * m.hidden
        total += m.classes * (m.hidden + 1) if m.patch else 0
        total += m.further_layers * prediction_parameters(m)
        total += compressed.contraction_parameters(m) if m.streams > 1 else 0
    return total


def total_parameters(m: ModelSpec) -> int:
    """Of the whole model."""
    return stage_parameters(m, m.layers, True, True)


def idle_parameters(m: ModelSpec) -> int:
    """Parameters of experts that a token does not see."""
    layers = sum(map(m.has_experts, range(m.layers)))
    layers += m.further_layers if m.experts else 0
    idle = m.experts - m.experts_per_token
    return layers * idle * feed_forward_parameters(m, m.moe_ffn, m.routed_hidden)


def active_parameters(m: ModelSpec) -> int:
    """Parameters that one token meets."""
    return total_parameters(m) - idle_parameters(m)


def pairs(m: ModelSpec, layer: int, seq: int, causal: bool = True) -> float:
    """Keys that a query of a sequence looks at, on average."""
    if not m.attends(layer):
        return 0.0
    if m.compressed:
        return compressed.keys(m, m.ratio_of(layer), seq)
    window = m.index_topk if m.indexed else m.window_of(layer)
    if window and window < seq:
        return window - window**2 / (2 * seq)
    return seq / 2 if causal and not m.patch else float(seq)


def attention_flops(m: ModelSpec, seq: int, causal: bool = True) -> float:
    """Of scores and their products with values, forward, for one token and all layers."""
    layers = sum(score_flops(m, i, seq, causal) for i in range(m.layers))
    return layers + m.mtp_layers * score_flops(m, m.layers, seq, causal)


def score_flops(m: ModelSpec, layer: int, seq: int, causal: bool) -> float:
    """Of a layer's scores and their products with values, and of the scores of an indexer."""
    if m.compressed:
        return compressed.score_flops(m, m.ratio_of(layer), seq, causal)
    value = m.v_head_dim if m.latent else m.head_dim
    own = m.indexed and m.ratio_of(layer)
    scores = indexed.score_flops(m, seq, causal) if own else 0.0
    keys = pairs(m, layer, seq, causal)
    return scores + 2.0 * m.heads * (m.query_dim + value) * keys


def attention_weights(m: ModelSpec, layer: int) -> int:
    """Weights of an attention's projections, without biases."""
    if m.compressed:
        return compressed.weights(m, m.ratio_of(layer))
    q, kv = m.heads * m.query_dim, m.kv_heads * m.head_dim
    if not m.latent:
        return 2 * m.hidden * (q + kv) + (m.hidden * q if m.attention_gate else 0)
    queries = (q + m.hidden) * m.q_lora_rank if m.q_lora_rank else m.hidden * q
    down = m.hidden * (m.kv_lora_rank + m.rope_head_dim)
    up = m.kv_lora_rank * m.heads * (m.head_dim + m.v_head_dim)
    output = m.heads * m.v_head_dim * m.hidden
    indexer = indexed.weights(m) if m.ratio_of(layer) else 0
    return queries + down + up + output + indexer
