"""Floating-point operations of a training step by a model's sizes: what published figures count.

Predictions count those of the kernels that run.
"""

from __future__ import annotations

from prestep.workloads.models import compressed, counts, hybrid
from prestep.workloads.models.model import ModelSpec


def flops_per_token(
    m: ModelSpec, seq: int, causal: bool = True, recomputed: bool = False
) -> float:
    """Of training: forward and twice that backward (with recomputation the layers' forward pass twice), in matrix
    products only. ``causal`` counts half the scores, as a causal kernel computes; some formulas count all."""
    layers = sum(layer_flops(m, i, seq, causal) for i in range(m.layers))
    # The next word's embedding and each stream have a projection of their own, one to the other's width.
    further = layer_flops(m, m.layers, seq, causal)
    further += 2.0 * (1 + m.streams) * m.hidden**2
    layers += m.mtp_layers * further
    return (4.0 if recomputed else 3.0) * layers + 6.0 * m.hidden * m.vocab * (
        1 + m.mtp_layers
    )


def layer_flops(m: ModelSpec, layer: int, seq: int, causal: bool = True) -> float:
    """Of a layer's matrix products, forward, for one token: 2 for each weight met, and its attention."""
    scores = counts.score_flops(m, layer, seq, causal)
    part = m.part_of(layer)
    if part == hybrid.CONVOLUTION:
        return 8.0 * m.hidden**2
    if part in hybrid.SCANS:
        return 2.0 * scan_weights(m, part) + scan_flops(m, part)
    weights = counts.attention_weights(m, layer) if m.attends(layer) else 0
    if m.streams > 1:
        weights += 2 * compressed.mixing(m.streams) * m.residual
    if part != hybrid.ATTENTION:
        weights += feed_forward_weights(m, m.has_experts(layer))
    return 2.0 * weights + scores


def feed_forward_weights(m: ModelSpec, experts: bool) -> int:
    """Weights that a token meets in a layer's feed-forward network, or in its router and experts."""
    matrices = 3 if m.gated else 2
    if not experts:
        return matrices * m.hidden * m.ffn
    seen = m.routed_hidden * m.experts_per_token + m.hidden * m.shared_experts
    scores = m.experts + (1 if m.shared_gate else 0)
    return matrices * m.moe_ffn * seen + m.hidden * (scores + 2 * m.moe_latent)


def scan_weights(m: ModelSpec, part: str) -> int:
    """Weights of the products of a layer with a scan."""
    s = hybrid.sizes_of(m, part)
    width = {
        hybrid.MAMBA: hybrid.mamba_width,
        hybrid.DELTA: hybrid.delta_width,
        hybrid.KIMI: hybrid.kimi_width,
    }[part](s)
    up = (
        s.value_dim * (s.values * s.key_dim + s.value_width)
        if part == hybrid.KIMI
        else 0
    )
    return m.hidden * (width + s.value_width) + up


def scan_flops(m: ModelSpec, part: str) -> float:
    """Of the scan, forward, for one token.

    Mamba-2 as Megatron counts it (training.py, mamba_layer_flops: 7 for an element of the state); the delta rules read,
    correct and update theirs: three products.
    """
    s = hybrid.sizes_of(m, part)
    state = float(s.value_width * s.key_dim)
    return (7.0 if part == hybrid.MAMBA else 6.0) * state
