"""Attention over a window and compressed keys (DeepSeek-V4): what a layer's compression ratio makes of it.

Every query sees a window of tokens; besides, where the ratio is 128, keys that stand for 128 tokens each, and where it
is 4, those of overlapping groups of four that an indexer chooses for it. Keys are values, one for all heads. Heads'
outputs are projected in groups. Layers may carry several residual streams (hyper-connections, arXiv:2409.19606).
Source: megatron/core/transformer/experimental_attention_variant/{deepseek_v4_hybrid_attention,csa}.py and
hyper_connection.py (branch dev, d48bd6be).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prestep.workloads.job.model import Model
    from prestep.workloads.models.model import ModelSpec

#: Ratios that there are: a window alone, keys that an indexer chooses among, keys that are all seen.
WINDOW, INDEXED, HEAVY = RATIOS = (0, 4, 128)
#: What nobody says of such attention (DeepSeek-V4-Flash).
DEFAULTS = {
    "index_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "o_groups": 8,
    "o_lora_rank": 1024,
}
#: The same of keys that other attention has, too.
SHARED_DEFAULTS = {"window": 128, "rope_head_dim": 64}


def keys_of(s: Model) -> dict[str, Any]:
    """Keys of compressed attention that have a default, as they were said or not."""
    if not s.compress_ratios:
        return {}
    usual = DEFAULTS | SHARED_DEFAULTS
    return {key: getattr(s, key) or value for key, value in usual.items()}


def wrong_keys(said: Model, m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Ratios that nobody knows, and keys that do not fit them: key, what was found, what was expected."""
    if m.streams > 1 and m.layer_pattern:
        yield "streams", str(m.streams), "1 with layer_pattern"
    if m.hash_layers > m.layers:
        yield "hash_layers", str(m.hash_layers), f"at most layers = {m.layers}"
    if m.compressed:
        yield from _ratios(m)
        yield from _beside(said, m)
        return
    for key in DEFAULTS:
        if getattr(said, key):
            beside = "kv_lora_rank and index_topk or " if "index" in key else ""
            expected = f"{beside}compress_ratios beside it"
            yield key, str(getattr(said, key)), expected


def _ratios(m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """One of a known ratio for each layer."""
    key, count = "compress_ratios", len(m.compress_ratios)
    if strange := sorted(set(m.compress_ratios) - set(RATIOS)):
        yield key, str(strange[0]), f"ratios of {', '.join(map(str, RATIOS))}"
    if count not in (m.layers, m.layers + m.mtp_layers):
        further = f" (and {m.mtp_layers} more)" if m.mtp_layers else ""
        yield key, f"{count} ratios", f"one for each of {m.layers} layers{further}"
    if len(set(m.compress_ratios[m.layers :])) > 1:
        yield key, str(m.compress_ratios[m.layers :]), "one for all further layers"


def _beside(said: Model, m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Sizes of compressed attention, and attention of another kind."""
    if not m.q_lora_rank:
        expected = "a value: compress_ratios needs it"
        yield "q_lora_rank", "nothing", expected
    for key in ("kv_lora_rank", "layer_pattern", "window_every", "attention_gate"):
        if getattr(said, key):
            yield key, str(getattr(said, key)), "nothing beside compress_ratios"
    if m.kv_heads != 1:
        yield "kv_heads", str(m.kv_heads), "1: all heads have the same keys"
    if m.heads % m.o_groups:
        yield "heads", str(m.heads), f"a multiple of o_groups = {m.o_groups}"
    if m.rope_head_dim > min(m.head_dim, m.index_head_dim):
        least = min(m.head_dim, m.index_head_dim)
        yield "rope_head_dim", str(m.rope_head_dim), f"at most {least}"


def overlap(ratio: int) -> int:
    """How many compressed keys a token is part of: groups of four overlap."""
    return 2 if ratio == INDEXED else 1


def parameters(m: ModelSpec, ratio: int) -> int:
    """Of a layer's attention: projections, norms, sinks, and what compresses and chooses keys."""
    norms = m.q_lora_rank + m.head_dim
    total = _projections(m) + norms + m.heads
    if ratio:
        total += compressor_parameters(m, ratio, m.head_dim)
    if ratio == INDEXED:
        total += _index_projections(m)
        total += compressor_parameters(m, ratio, m.index_head_dim)
    return total


def compressor_parameters(m: ModelSpec, ratio: int, width: int) -> int:
    """Of what makes keys of that width: two projections, a bias for each place in a group, a norm."""
    columns = overlap(ratio) * width
    return 2 * m.hidden * columns + ratio * columns + width


def weights(m: ModelSpec, ratio: int) -> int:
    """Weights of the products that a token meets in a layer's attention."""
    total = _projections(m)
    if ratio:
        total += 2 * m.hidden * overlap(ratio) * m.head_dim
    if ratio == INDEXED:
        total += _index_projections(m)
        total += 2 * m.hidden * overlap(ratio) * m.index_head_dim
    return total


def _projections(m: ModelSpec) -> int:
    """Weights of queries, of keys, and of the output in its groups and together."""
    wide = m.heads * m.head_dim
    queries = m.q_lora_rank * (m.hidden + wide)
    output = wide * m.o_lora_rank + m.o_groups * m.o_lora_rank * m.hidden
    return queries + m.hidden * m.head_dim + output


def _index_projections(m: ModelSpec) -> int:
    """Weights of the indexer's queries, and of the weight of each of its heads."""
    return m.index_heads * (m.q_lora_rank * m.index_head_dim + m.hidden)


def compressed_keys(m: ModelSpec, ratio: int, seq: int) -> float:
    """Compressed keys that a query of a sequence sees on average: those before it, at most as many as are chosen."""
    if not ratio:
        return 0.0
    most = min(m.index_topk, seq // ratio) if ratio == INDEXED else seq // ratio
    return most * (1.0 - most * ratio / (2.0 * seq))


def keys(m: ModelSpec, ratio: int, seq: int) -> float:
    """Keys that a query sees on average, of the window and compressed ones."""
    near = m.window - m.window**2 / (2 * seq) if m.window < seq else seq / 2
    return near + compressed_keys(m, ratio, seq)


def score_flops(m: ModelSpec, ratio: int, seq: int, causal: bool = True) -> float:
    """Of attention and of the indexer's scores, forward, for one token; not ``causal``: of all those scores."""
    total = 4.0 * m.heads * m.head_dim * keys(m, ratio, seq)
    if ratio == INDEXED:
        scored = seq / ratio / (2 if causal else 1)
        total += 2.0 * m.index_heads * m.index_head_dim * scored
    return total


def connection_parameters(m: ModelSpec) -> int:
    """Of one hyper-connection: a projection of all streams to the mixing weights, their biases and three scales."""
    return mixing(m.streams) * (m.residual + 1) + 3


def contraction_parameters(m: ModelSpec) -> int:
    """Of what makes one stream of all: a projection to a weight for each, their biases and a scale."""
    return m.streams * (m.residual + 1) + 1


def mixing(streams: int) -> int:
    """Mixing weights of a token: of streams into a part, of its result into them, and of each into each."""
    return streams**2 + 2 * streams
