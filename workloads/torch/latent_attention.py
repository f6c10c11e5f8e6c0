"""Multi-head latent attention in plain PyTorch: queries, keys and values from compressed states (arXiv 2405.04434).

Operators and their order are those of torchtitan's deepseek_v3 (models/deepseek_v3/model/model.py) and of transformers'
DeepseekV3Attention. Over tensor-parallel ranks the compressing projections and their norms are whole on each and see
all tokens, the expanding ones are spread over heads (torchtitan, deepseek_v3/infra/parallelize.py: `NoParallel` and
`ColwiseParallel`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prestep.sim.extras import lazily
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators import copies
from prestep.workloads.torch import aten, indexing
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.attention import (
    FLASH,
    attention,
    cut,
    merge_heads,
    rope,
    split_joined,
)
from prestep.workloads.torch.modules import Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import indexer

Step = Callable[[Tape, Tensor], Tensor]


def unchanged(t: Tape, x: Tensor) -> Tensor:
    """The same value: nothing is split."""
    return x


@dataclass(frozen=True)
class Whole:
    """What surrounds projections that every tensor-parallel rank has whole.

    Attributes
    ----------
    gathered
        The layer's input, of all tokens.
    spread
        A value that all ranks have before split projections take it: its gradient is summed over ranks.
    """

    gathered: Step = unchanged
    spread: Step = unchanged


class LatentAttention(Module):
    """Attention over ``heads / shards`` heads of ``head_dim + rope_head_dim`` elements, values of ``v_head_dim``."""

    label = "attention"

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        shards: int = 1,
        whole: Whole | None = None,
        index: int = 0,
    ) -> None:
        super().__init__()
        self.m, self.whole = m, whole or Whole()
        self.heads = m.heads // shards
        states, width = m.q_lora_rank, self.heads * m.query_dim
        self.wq: Tensor | None = None
        if states:
            self.wq_a = self.add(t, states, m.hidden, name="wq_a")
            self.q_norm = self.add(t, states, name="q_norm")
            self.wq_b = self.add(t, width, states, name="wq_b")
        else:
            self.wq = self.add(t, width, m.hidden, name="wq")
        compressed, states = m.kv_lora_rank + m.rope_head_dim, m.kv_lora_rank
        self.wkv_a = self.add(t, compressed, m.hidden, name="wkv_a")
        self.kv_norm = self.add(t, states, name="kv_norm")
        width = self.heads * (m.head_dim + m.v_head_dim)
        self.wkv_b = self.add(t, width, states, name="wkv_b")
        chooses = m.ratio_of(index) > 0
        self.indexer = self.child(indexer.Indexer(t, m)) if chooses else None
        self.wo = self.add(t, m.hidden, self.heads * m.v_head_dim, name="wo")

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        x = self.whole.gathered(t, x)
        states = self._states(t, x)
        q = self._queries(t, x, states)
        k, v = self._keys(t, x)
        q, k, v = (aten.transpose(t, y, 1, 2) for y in (q, k, v))
        mask = self._chosen(t, x, states)
        del x, states
        wide = mask is None and _narrow_values(t, v.shape[-1], q.shape[-1])
        o = attention(t, q, k, padded(t, v, q.shape[-1]) if wide else v, mask=mask)
        del q, k, mask
        o = aten.part(t, o, 0, v.shape[-1]) if wide else o
        return row(t, merge_heads(t, o), self.wo)

    def _states(self, t: Tape, x: Tensor) -> Tensor | None:
        """What queries are expanded from; None where they are made of tokens."""
        if self.wq is not None:
            return None
        return F.norm(t, "rms", F.linear(t, x, self.wq_a), [self.q_norm])

    def _chosen(self, t: Tape, x: Tensor, states: Tensor | None) -> Tensor | None:
        """A mask of all keys but those that this layer's indexer chooses, or that of a layer before; None: of none."""
        if self.indexer is not None and states is not None:
            t.chosen = self.indexer.forward(t, x, states)
        if t.chosen is None or not self.m.indexed:
            return None
        return indexer.mask_of(t, t.chosen)

    def _queries(self, t: Tape, x: Tensor, states: Tensor | None) -> Tensor:
        """Queries of this rank's heads, a part of each rotated: (batch, tokens, heads, width)."""
        m, spread = self.m, self.whole.spread
        if self.wq is not None:
            q = F.linear(t, spread(t, x), self.wq)
        elif states is not None:
            q = F.linear(t, spread(t, states), self.wq_b)
        q = cut(t, q, self.heads)
        if not m.rope_head_dim:
            return q
        plain, turned = split_joined(t, q, [m.head_dim, m.rope_head_dim])
        del q
        return aten.cat(t, [plain, self._rotated(t, turned)])

    def _keys(self, t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of this rank's heads, from one state; heads share the rotated part of a key."""
        m, spread = self.m, self.whole.spread
        compressed = F.linear(t, x, self.wkv_a)
        shared: list[Tensor] = []
        if m.rope_head_dim:
            widths = [m.kv_lora_rank, m.rope_head_dim]
            compressed, turned = split_joined(t, compressed, widths)
            turned = self._rotated(t, cut(t, turned, 1))
            shared = [spread(t, turned)]
            del turned
        states = spread(t, F.norm(t, "rms", compressed, [self.kv_norm]))
        del compressed
        expanded = cut(t, F.linear(t, states, self.wkv_b), self.heads)
        del states
        k, v = split_joined(t, expanded, [m.head_dim, m.v_head_dim])
        del expanded
        if shared:
            turned = shared.pop()
            k = aten.cat(t, [k, indexing.repeated(t, turned, turned.shape, self.heads)])
        return k, v

    def _rotated(self, t: Tape, x: Tensor) -> Tensor:
        """The part of queries or keys that says where they are, rotated if positions are rotary."""
        return rope(t, x, heads_behind=True) if self.m.rotary else x


def _narrow_values(t: Tape, value: int, query: int) -> bool:
    """Whether values are too narrow for the kernel: FlashAttention 2 wants them as wide as queries."""
    flash = t.choices is not None and t.choices.attention in FLASH
    return flash and value != query


def padded(t: Tape, x: Tensor, width: int) -> Tensor:
    """Heads with zeros behind them up to a width (``F.pad``): a fill and a copy; backward is a view."""
    shape, rule = x.shape, copies.RULES["constant_pad_nd"]
    arguments = (x, (0, width - shape[-1]), 0.0)
    y = t.empty((*shape[:-1], width), x.itemsize)
    aten.call(t, rule, "constant_pad_nd.default", arguments, y)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward")
        return [aten.view(g, shape, aten.strides_of(g))]

    return t.apply(y, [x], backward)
