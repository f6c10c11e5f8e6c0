"""Latent attention in compiled blocks: Inductor's kernels between its products, forward and backward.

Values and their order are those of `latent_attention`; what lies between two products is one kernel. Its bytes are
those that it reads and writes.
"""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.tensor import STREAM
from prestep.workloads.torch.attention_kernels import Widths
from prestep.workloads.torch.block_units import NORM
from prestep.workloads.torch.compiled_units import Grads, Late, Units
from prestep.workloads.torch.latent_attention import LatentAttention
from prestep.workloads.torch.tape import Tensor


class LatentUnits(Units):
    """Units of a block with latent attention."""

    @property
    def _latent(self) -> LatentAttention:
        layer = self.block.attention
        assert isinstance(layer, LatentAttention)
        return layer

    @property
    def _head(self) -> Widths:
        """FlashAttention 2 takes values as wide as queries: zeros are put behind them."""
        m = self._latent.m
        narrow = self.choices is None or self.choices.attention != "flash2"
        return Widths(m.query_dim, m.v_head_dim if narrow else m.query_dim)

    @property
    def _window(self) -> int:
        return 0

    def _widths(self) -> dict[str, int]:
        heads, head = self._latent.heads, self._head
        return {
            "q": heads * head.query,
            "k": heads * head.query,
            "v": heads * head.value,
        }

    @property
    def _expanded(self) -> int:
        """Width of keys and values as their projection makes them, without the part that heads share."""
        a = self._latent
        return a.heads * (a.m.head_dim + a.m.v_head_dim)

    # -- forward --------------------------------------------------------------------------------
    def forward_attention(self, v: dict[str, Tensor]) -> None:
        a, saved = self._latent, self.saved
        n1 = self._gathered(v.pop("n1"))
        if a.wq is not None:
            queries = self._linear(a.wq, "n1")
            self._keep("n1", n1, a.wq, a.wkv_a)
        else:
            states = self._linear(a.wq_a, "n1")
            self._keep("n1", n1, a.wq_a, a.wkv_a)
            normed = self._normed("q states", states, a.m.q_lora_rank)
            queries = self._linear(a.wq_b, "q states")
            self._keep("q states", normed, a.wq_b)
            del states, normed
        compressed = self._linear(a.wkv_a, "n1")
        del n1
        normed = self._normed("kv states", compressed, a.m.kv_lora_rank)
        keys = self._linear(a.wkv_b, "kv states")
        self._keep("kv states", normed, a.wkv_b)
        del normed, compressed
        self._to_heads(queries, keys)
        saved["out"], saved["lse"] = (
            self._new(self._widths()["v"]),
            self._new(a.heads, 4),
        )
        self._attend()
        width = a.heads * a.m.v_head_dim
        v["merged"] = self._new(width)
        self._fused("fused_transpose", width, 2)

    def _normed(self, name: str, x: Tensor, width: int) -> Tensor:
        """A compressed state after its norm, whose input and a number a row are kept."""
        self._fused("fused_norm", width, 2)
        self.saved[f"{name} before"] = x
        self.saved[f"{name} statistics"] = self._new(1, 4)
        return self._new(width)

    def _to_heads(self, queries: Tensor, keys: Tensor) -> None:
        """Queries and keys with their rotated parts in place, and values where the kernel wants others."""
        a, widths = self._latent, self._widths()
        for name in ("q", "k"):
            self._fused("fused_rope", widths[name], 2)
            self.saved[name] = self._new(widths[name])
        self.saved["v"] = self._new(widths["v"])
        if self._head.value != a.m.v_head_dim:
            self._fused(
                "fused_transpose", widths["v"], 1 + a.m.v_head_dim / self._head.value
            )
        del queries, keys

    # -- backward -------------------------------------------------------------------------------
    def backward_attention(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        self._attend_backward()
        grads = {name: self._new(width) for name, width in self._widths().items()}
        del g["merged"]
        for name in ("q", "k", "v", "out", "lse"):
            del self.saved[name]
        of_keys = self._keys_gradients(grads, g)
        self._fused("fused_rope_bwd", self._widths()["q"], 2)
        w += [*self._queries_gradients(grads.pop("q"), g), *of_keys]
        del self.saved["n1"]
        if NORM not in self.units:
            self._fused("fused_add", self.width, 3)
            g["n1"] = g.pop("q")
            del g["k"]

    def _keys_gradients(self, grads: dict[str, Tensor], g: dict[str, Tensor]) -> Grads:
        """Backward of keys and values: gradients of their weights, in the order of parameters."""
        a = self._latent
        read = self._widths()["k"] + self._widths()["v"]
        self._fused("fused_rope_bwd", read, 1 + self._expanded / read)
        del grads["k"], grads["v"]
        expanded = self._new(self._expanded)
        up = self._weight_grad(a.wkv_b, "kv states", expanded, self.saved["kv states"])
        states = self._over_ranks(self._data_grad(a.wkv_b))
        if a.m.rope_head_dim:
            self._over_ranks(self._new(a.m.rope_head_dim))
        norm = self._norm_gradient("kv states", a.m.kv_lora_rank, a.kv_norm)
        compressed = self._new(a.wkv_a.shape[0])
        down = self._weight_grad(a.wkv_a, "n1", compressed, self.saved["n1"])
        g["k"] = self._data_grad(a.wkv_a)
        del states
        return [down, norm, up]

    def _queries_gradients(self, grad: Tensor, g: dict[str, Tensor]) -> Grads:
        """The same of queries."""
        a, n1 = self._latent, self.saved["n1"]
        if a.wq is not None:
            weight = self._weight_grad(a.wq, "n1", grad, n1)
            g["q"] = self._over_ranks(self._data_grad(a.wq))
            return [weight]
        up = self._weight_grad(a.wq_b, "q states", grad, self.saved["q states"])
        states = self._over_ranks(self._data_grad(a.wq_b))
        norm = self._norm_gradient("q states", a.m.q_lora_rank, a.q_norm)
        down = self._weight_grad(a.wq_a, "n1", states, n1)
        g["q"] = self._data_grad(a.wq_a)
        return [down, norm, up]

    def _norm_gradient(self, name: str, width: int, weight: Tensor) -> Tensor:
        """Backward of a state's norm: its gradient, and the weight's as sums over the rows."""
        self._fused("fused_norm_bwd", width, 3)
        self.t.launch(Kernel("fused_sum", (width,), bytes=66.0 * width))
        for kept in (name, f"{name} before", f"{name} statistics"):
            del self.saved[kept]
        return self.t.empty(weight.shape, weight.itemsize)

    def _over_ranks(self, x: Tensor) -> Tensor:
        """The sum of all ranks' gradients of a value that each has whole."""
        if self.group is not None:
            self.group.collective(self.t, "all_reduce", x.size, STREAM)
            self.t.wait(self.t.record(STREAM))
        return x

    def _input_gradient(self, parts: list[Tensor]) -> list[Tensor]:
        """It is the same on every rank, which keeps its tokens' part."""
        self.rows = self.part_rows
        return parts
