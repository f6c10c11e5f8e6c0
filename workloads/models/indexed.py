"""Latent attention to keys that an indexer chooses for every query (DeepSeek-V3.2, GLM-5; arXiv:2512.02556).

An indexer with heads of its own scores all keys before a query, and the ``index_topk`` best are attended to. Layers may
share the choice of the last layer that has an indexer (GLM-5.2). Sources: transformers, models/deepseek_v32 and
glm_moe_dsa; megatron/core/transformer/experimental_attention_variant/dsa.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prestep.workloads.job.model import Model
    from prestep.workloads.models.model import ModelSpec

#: Letters of a layer with an indexer of its own, and of one that shares a choice, as in ``index_topk_pattern``.
FULL, SHARED = "F", "S"
#: Sizes of the indexer's heads where nothing is said (DeepSeek-V3.2).
DEFAULTS = {"index_heads": 64, "index_head_dim": 128}


def keys_of(s: Model) -> dict[str, Any]:
    """Sizes of the indexer of latent attention, or their defaults."""
    return {key: getattr(s, key) or value for key, value in DEFAULTS.items()}


def wrong_keys(said: Model, m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """Keys that do not fit the indexer: key, what was found, what was expected."""
    for key in ("layer_pattern", "window", "streams", "o_groups", "o_lora_rank"):
        if getattr(said, key):
            yield key, str(getattr(said, key)), "nothing beside index_topk"
    if not m.q_lora_rank:
        yield "q_lora_rank", "nothing", "a value: the indexer's queries come from it"
    if m.rope_head_dim > m.index_head_dim:
        yield "rope_head_dim", str(m.rope_head_dim), f"at most {m.index_head_dim}"
    pattern = m.index_pattern
    if pattern and (len(pattern) != m.layers or set(pattern) - {FULL, SHARED}):
        expected = f"{m.layers} letters {FULL} and {SHARED}, one for each layer"
        yield "index_pattern", pattern[:20], expected
    elif pattern.startswith(SHARED):
        yield "index_pattern", SHARED, f"{FULL} first: there is no choice to share"


def pattern_of(
    layers: int, every: int = 1, first: int = 2, kinds: Sequence[str] = ()
) -> str:
    """Letters of all layers, from a list of kinds or the schedule of GLM's configurations; "" where none is shared.

    Examples
    --------
    >>> pattern_of(9, 4, 3)
    'FFFSSSFSS'
    """
    letters = [kind[:1].upper() for kind in kinds] or [
        SHARED if max(i - first + 1, 0) % every else FULL for i in range(layers)
    ]
    return "".join(letters) if SHARED in letters else ""


def weights(m: ModelSpec) -> int:
    """Weights of the products of a layer's indexer: of its queries, its keys and the weight of each head."""
    queries = m.q_lora_rank * m.index_heads * m.index_head_dim
    return queries + m.hidden * (m.index_head_dim + m.index_heads)


def score_flops(m: ModelSpec, seq: int, causal: bool = True) -> float:
    """Of the indexer's scores, forward, for one token; not ``causal``: of all keys."""
    return 2.0 * m.index_heads * m.index_head_dim * seq / (2 if causal else 1)
