"""What Inductor launches for each unit of a transformer block, forward and backward (see ``compiled``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.graph.kernel import Kernel
from workloads.torch.block import Block
from workloads.torch.block_units import DOWN, GATE, MAKES, NORM, OUTPUT, UP, uses
from workloads.torch.compiled_attention import Heads
from workloads.torch.tape import Tape, Tensor

# Up to this width Inductor keeps a row on chip and sums the norm's weight gradient in the same kernel
# (seen at 2048, not at 4096).
PERSISTENT_WIDTH = 2048
PARTIALS = 256  # rows of partial sums of a norm's weight gradient

Late = list[Callable[[], None]]


class Units(Heads):
    """The kernels of some consecutive units of a block, compiled together.

    Forward methods take and make named values; backward methods take and make their gradients, append the
    gradients of the unit's parameters, and may put launches off (``late``). ``wanted`` names the values that
    later graphs use.
    """

    def __init__(
        self, t: Tape, block: Block, units: Sequence[int], wanted: set[str]
    ) -> None:
        super().__init__(t, block)
        self.units = units
        feed_forward = getattr(block, "ffn", None)  # not every layer of a hybrid's
        self.gated = getattr(feed_forward, "gated", False)
        # The square of a ReLU is one kernel like it.
        self.activation = getattr(feed_forward, "activation", "").removesuffix("2")
        made = [name for u in units for name in MAKES[u]]
        used = [name for u in units for name in uses(u, self.gated)]
        self.inputs = list(dict.fromkeys(name for name in used if name not in made))
        self.outputs = [name for name in made if name in wanted]
        # A graph of the whole block puts weight gradients off to its end; a part of it does not.
        self.whole = NORM in units and DOWN in units
        self.fused_mul = GATE in units and UP in units
        self.saved: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

    # -- pieces ---------------------------------------------------------------------------------
    def _keep(self, name: str, x: Tensor, *weights: Tensor) -> None:
        """Saves the input of layers for backward, and what it takes of their weights."""
        if name not in self.saved:
            self.saved[name] = self._kept(x)
        for w in weights:
            kept = self._kept_weight(w)
            if kept is not None:
                self.saved[f"weight {w.name}"] = kept

    # -- forward --------------------------------------------------------------------------------
    def forward_norm(self, v: dict[str, Tensor]) -> None:
        self._fused("fused_norm", self.width, 2)
        self.saved["x"], self.saved["stat1"] = v["x"], self._new(1, 4)
        v["n1"] = self._new(self.width)

    def forward_attention(self, v: dict[str, Tensor]) -> None:
        a, saved = self._plain, self.saved
        n1 = self._gathered(v.pop("n1"))
        q, k, saved["v"] = (self._linear(w, "n1") for w in (a.wq, a.wk, a.wv))
        self._keep("n1", n1, a.wq, a.wk, a.wv)
        del n1
        q = self._queries_of(q)
        saved["q"] = self._rotated(self._head_norm(q, "q"), a.heads)
        saved["k"] = self._rotated(self._head_norm(k, "k"), a.kv)
        del q, k
        width = a.heads * a.head_dim
        self._attend()
        saved["out"], saved["lse"] = self._new(width), self._new(a.heads, 4)
        self._with_sinks()
        v["merged"] = self._new(width)
        self._fused("fused_transpose", width, 3 if a.gated else 2)

    def forward_output(self, v: dict[str, Tensor]) -> None:
        merged, wo = v.pop("merged"), self.block.attention.wo
        projected = self._linear(wo, "merged")
        self._keep("merged", merged, wo)
        projected = self._summed(projected)
        del merged
        if DOWN in self.units:  # the residual sum is formed again where it is needed
            self._fused("fused_add_norm", self.width, 3)
            self.saved["x"], self.saved["projected"] = v["x"], projected
        else:
            self._fused("fused_add_norm", self.width, 4)
            v["x2"] = self.saved["x2"] = projected  # in place
        self.saved["stat2"] = self._new(1, 4)
        v["n2"] = self._new(self.width)

    def forward_gate(self, v: dict[str, Tensor]) -> None:
        w1 = self.block.ffn.w1  # type: ignore[attr-defined]
        v["n2"] = self._gathered(v["n2"])
        self.saved["h1"] = self._linear(w1, "n2")
        self._keep("n2", v["n2"], w1)
        if not self.fused_mul:
            self._fused(f"fused_{self.activation}", w1.shape[0], 2)
            v["act"] = self._new(w1.shape[0])

    def forward_up(self, v: dict[str, Tensor]) -> None:
        w3 = self.block.ffn.w3  # type: ignore[attr-defined]
        self.saved["h3"] = self._linear(w3, "n2")
        self._keep("n2", v["n2"], w3)
        if not self.fused_mul:
            self.saved["act"] = v.pop("act")
        self._fused(
            f"fused_{self.activation}_mul" if self.fused_mul else "fused_mul",
            w3.shape[0],
            3,
        )
        v["prod"] = self._new(w3.shape[0])

    def forward_down(self, v: dict[str, Tensor]) -> None:
        prod, w2 = v.pop("prod" if self.gated else "act"), self.block.ffn.w2  # type: ignore[attr-defined]
        self._keep("prod", prod, w2)
        del prod
        self.t.saves()  # what comes after is not computed again
        self._summed(self._linear(w2, "prod"))
        self._fused("fused_add", self.width, 4 if OUTPUT in self.units else 3)
        v["y"] = self._new(self.width)

    # -- backward -------------------------------------------------------------------------------
    def backward_down(self, g: dict[str, Tensor], w: list[Tensor], late: Late) -> None:
        w2 = self.block.ffn.w2  # type: ignore[attr-defined]
        whole = self._gathered(g["y"])
        w.append(self._weight_grad(w2, "prod", self.saved.pop("prod"), whole))
        g["prod" if self.gated else "act"] = self._data_grad(w2, made=False)
        g["x2"] = g.pop("y")

    def backward_up(self, g: dict[str, Tensor], w: list[Tensor], late: Late) -> None:
        w3 = self.block.ffn.w3  # type: ignore[attr-defined]
        if (
            self.fused_mul
        ):  # both factors' gradients in one kernel, the products after it
            self._fused(f"fused_{self.activation}_mul_bwd", w3.shape[0], 5)
            g["h1"], g["h3"] = g.pop("prod"), self._new(w3.shape[0])
            del self.saved["h3"]
            self._later(late, w, w3, "n2", g["h3"], self.saved["n2"])
            g["n2 up"] = self._data_grad(w3)
            del g["h3"]
            return
        self._fused("fused_mul_bwd", w3.shape[0], 5)
        g["act"], inner = g.pop("prod"), self._new(w3.shape[0])
        w.append(self._weight_grad(w3, "n2", inner, self.saved["n2"]))
        g["n2 up"] = self._data_grad(w3)
        self._join_norm(g, "n2 up")

    def backward_gate(self, g: dict[str, Tensor], w: list[Tensor], late: Late) -> None:
        w1 = self.block.ffn.w1  # type: ignore[attr-defined]
        if not self.fused_mul:
            self._fused(f"fused_{self.activation}_bwd", w1.shape[0], 3)
            g["h1"] = g.pop("act")
        inner = g.pop("h1")
        del self.saved["h1"]
        self._later(late, w, w1, "n2", inner, self.saved["n2"])
        g["n2 gate"] = self._data_grad(w1)
        self._join_norm(g, "n2 gate")

    def _join_norm(self, g: dict[str, Tensor], part: str) -> None:
        """Outside a graph with the norm, the parts of its output's gradient become one."""
        if OUTPUT not in self.units:
            g.setdefault("n2", g.pop(part))

    def _later(
        self, late: Late, w: list[Tensor], weight: Tensor, name: str, *needed: Tensor
    ) -> None:
        """A weight gradient now or, in a graph of the whole block, after everything else."""
        if not self.whole:
            w.append(self._weight_grad(weight, name, *needed))
            return
        at = len(w)
        w.append(weight)  # keeps the place
        late.append(lambda: w.__setitem__(at, self._weight_grad(weight, name, *needed)))

    def backward_output(
        self, g: dict[str, Tensor], w: list[Tensor], late: Late
    ) -> None:
        wo = self.block.attention.wo
        parts = [g.pop(name) for name in ("n2", "n2 up", "n2 gate") if name in g]
        read = len(parts)
        parts = self._summed_gradient(parts) if self.whole else parts
        passes = (6 if self.whole else 5) - (read - len(parts))
        self._fused("fused_norm_bwd", self.width, passes)
        g["x2"] = self._new(self.width)
        norms = self._norm_weights(self.block.norm2.parameters)
        whole = self._gathered(g["x2"])
        self._later(late, w, wo, "merged", whole, self.saved["merged"])
        w += norms
        g["merged"] = self._data_grad(wo)
        g["x"] = g.pop("x2")
        del parts
        for name in ("merged", "stat2", "x2", "projected"):
            self.saved.pop(name, None)

    def _norm_weights(self, parameters: list[Tensor]) -> list[Tensor]:
        """Column sums of a norm's gradient: inside the fused kernel as partial sums, else in one of their own."""
        t, width = self.t, self.width
        if width <= PERSISTENT_WIDTH:
            t.launch(
                Kernel("sum", (PARTIALS * width,), "fp32", bytes=4.0 * PARTIALS * width)
            )
            t.launch(Kernel("fused_cast", (width,), bytes=6.0 * width))
        elif not self.whole:
            self._fused("fused_norm_bwd_weight", width, 3)
            t.launch(Kernel("fused_sum", (width,), bytes=66.0 * width))
        return [t.empty(p.shape, p.itemsize) for p in parameters]

    def backward_attention(
        self, g: dict[str, Tensor], w: list[Tensor], late: Late
    ) -> None:
        self._gate_gradient()
        sinks = self._sinks_gradient()
        self._attend_backward()
        grads = {name: self._new(width) for name, width in self._widths().items()}
        # The gates' gradient lies beside the queries'.
        grads["q"] = self._new(self._plain.query_heads * self._plain.head_dim)
        del g["merged"]
        for name in ("q", "k", "v", "out", "lse"):
            del self.saved[name]
        if self.whole:
            self._projections_in_a_block(grads, g, w, late)
        else:
            self._projections_apart(grads, g, w)
        w += sinks
        del self.saved["n1"]
        if NORM not in self.units:
            self._fused("fused_add", self.width, 4)
            g["n1"] = g.pop("q")
            del g["k"], g["v"]

    def _projections_in_a_block(
        self,
        grads: dict[str, Tensor],
        g: dict[str, Tensor],
        w: list[Tensor],
        late: Late,
    ) -> None:
        """Backward of the projections in a graph of the whole block: the queries' weight gradient comes late."""
        self._unrotate("k", "q")
        norms = self._head_norm_gradients("k", "q")
        n1 = self.saved["n1"]
        wk = self._weight_grad(self._projection("k"), "n1", grads["k"], n1)
        wv = self._weight_grad(self._projection("v"), "n1", grads["v"], n1)
        for name in ("v", "k", "q"):
            g[name] = self._data_grad(self._projection(name), made=name != "v")
        self._later(late, w, self._projection("q"), "n1", grads["q"], n1)
        w += [wk, wv, *norms]

    def _projections_apart(
        self, grads: dict[str, Tensor], g: dict[str, Tensor], w: list[Tensor]
    ) -> None:
        """Backward of the projections, one after the other."""
        weights: dict[str, Tensor] = {}
        norms: list[Tensor] = []
        for name in ("v", "k", "q"):
            if name != "v":
                self._unrotate(name)
                norms = self._head_norm_gradients(name)
            weight = self._projection(name)
            weights[name] = self._weight_grad(
                weight, "n1", grads.pop(name), self.saved["n1"]
            )
            g[name] = self._data_grad(weight, made=name != "v")
        w += [*(weights[name] for name in ("q", "k", "v")), *norms]

    def _input_gradient(self, parts: list[Tensor]) -> list[Tensor]:
        """The gradient of the attention's input, of this rank's tokens; or parts that the next kernel adds up."""
        return self._summed_gradient(parts)

    def backward_norm(self, g: dict[str, Tensor], w: list[Tensor], late: Late) -> None:
        parts = [g.pop(name) for name in ("n1", "q", "k", "v") if name in g]
        parts = self._input_gradient(parts)
        together = (
            self.whole and self.width > PERSISTENT_WIDTH
        )  # both norms' weights at once
        if together:
            self._fused("fused_norm_bwd_weight", self.width, 7)
        self._fused("fused_norm_bwd", self.width, 3 + len(parts))
        for _ in range(2 if together else 0):
            self.t.launch(Kernel("fused_sum", (self.width,), bytes=66.0 * self.width))
        w += self._norm_weights(self.block.norm1.parameters)
        g["x"] = self._new(self.width)
        del parts, self.saved["x"], self.saved["stat1"]
