"""The indexer of sparse attention as transformers writes it: which keys every query attends to.

Scores of all keys in fp32 by heads of their own, their weighted sum, the best ones, and a mask of the others. Nothing
in it has a gradient: its weights are not trained there. Layers without one take the choice of the last that has one.
Source: transformers 5.24, models/deepseek_v32 and glm_moe_dsa (whose rotation of neighbours is as many operators).
"""

from __future__ import annotations

from functools import partial

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch import aten, written_out
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.indexing import NOTHING, hidden_keys, made
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class Indexer(Module):
    """Chooses keys for queries; its parameters have no gradients."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.m, width = m, m.index_head_dim
        add = partial(self.add, t)
        self.wq_b = add(m.index_heads * width, m.q_lora_rank, name="indexer.wq_b")
        self.wk = add(width, m.hidden, name="indexer.wk")
        self.norm = [add(width, name="indexer.k_norm") for _ in ("weight", "bias")]
        self.weigh = add(m.index_heads, m.hidden, name="indexer.weights_proj")
        for p in self.parameters:
            p.requires_grad = False

    def forward(self, t: Tape, x: Tensor, states: Tensor) -> Tensor:
        """Places of the chosen keys, (batch, tokens, keys); ``states``: what queries are expanded from."""
        batch, tokens, _ = x.shape
        run = partial(made, t)
        t.cpu("module")
        with t.no_grad():
            scores = self._scores(t, x, states)
            hidden = run("bitwise_not.default", (_causal(t, batch, tokens),))
            seen = run("masked_fill.Scalar", (scores, hidden, NOTHING))
            del scores, hidden
            shape = batch, tokens, min(self.m.index_topk, tokens)
            best, places = t.empty(shape, 4), t.empty(shape, 8)
            aten.call(t, kernels_of, "topk.default", (seen, shape[-1]), best, places)
            return run("_to_copy.default", (places,), shape, "int32", dtype="int32")

    def _scores(self, t: Tape, x: Tensor, states: Tensor) -> Tensor:
        """A score of every key for every query, in fp32."""
        m, (batch, tokens, _) = self.m, x.shape
        heads, width, rows = m.index_heads, m.index_head_dim, batch * tokens
        q = F.linear(t, states, self.wq_b)
        k = F.norm(t, "layer", F.linear(t, x, self.wk), self.norm, 1e-6)
        pairs = [y.view(batch, tokens, y.shape[-1] // width, width) for y in (q, k)]
        t.cpu("view", 4)
        turned = [aten.part(t, y, 0, m.rope_head_dim) for y in pairs]
        turned = [written_out.rope(t, y, heads_behind=True) for y in turned]
        rest = [aten.part(t, y, m.rope_head_dim) for y in pairs]
        q, k = (aten.cat(t, list(both)) for both in zip(turned, rest, strict=True))
        del pairs, turned, rest
        q = aten.to(t, q, 4).view(rows, heads, width)
        k = aten.to(t, aten.transpose(t, k.view(batch, tokens, width), 1, 2), 4)
        # Every query has the same keys: of several samples the product takes copies.
        strides = width * tokens, 0, *aten.strides_of(k)[1:]
        k = aten.view(k, (batch, tokens, width, tokens), strides)
        k = aten.reshape(t, k, rows, width, tokens)
        scores = made(t, "bmm.default", (q, k), (rows, heads, tokens))
        del q, k
        scores = scores.view(batch, tokens, heads, tokens)
        scores = aten.activation(t, "relu", aten.mul_number(t, scores, width**-0.5))
        scores = scores.view(rows, heads, tokens)
        weights = aten.to(t, F.linear(t, x, self.weigh), 4)
        weights = aten.mul_number(t, weights, heads**-0.5).view(rows, 1, heads)
        summed = made(t, "bmm.default", (weights, scores), (rows, 1, tokens))
        return summed.view(batch, tokens, tokens)


def mask_of(t: Tape, places: Tensor) -> Tensor:
    """What is added to the scores of every query: minus infinity but for the chosen keys before it, in 16 bits."""
    batch, tokens, _ = places.shape
    shape, run = (batch, tokens, tokens), partial(made, t)
    with t.no_grad():
        ones = run("new_ones.default", (places, shape), shape, "bool", dtype="bool")
        index = run("_to_copy.default", (places,), None, "int64", dtype="int64")
        others = run("scatter.value", (ones, -1, index, False))
        del ones, index
        others = others.view(batch, 1, tokens, tokens)
        chosen = run("bitwise_not.default", (others,))
        del others
        causal = _causal(t, batch, tokens)
        causal = aten.view(causal, chosen.shape, (0, tokens**2, tokens, 1))
        seen = run("bitwise_and.Tensor", (causal, chosen))
        return hidden_keys(t, seen)


def _causal(t: Tape, batch: int, tokens: int) -> Tensor:
    """The model's mask of later keys, one for all samples."""
    table = t.table("causal", (tokens, tokens), 1)
    table.dtype = "bool"
    return aten.view(table, (batch, tokens, tokens), (0, tokens, 1))
