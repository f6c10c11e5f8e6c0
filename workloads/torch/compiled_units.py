"""What Inductor launches for each unit of a transformer block, forward and backward (see ``compiled``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.block_units import (
    ATTENTION,
    DOWN,
    GATE,
    MAKES,
    NORM,
    OUTPUT,
    UP,
    uses,
)
from prestep.workloads.torch.compiled_attention import Heads
from prestep.workloads.torch.tape import Tape, Tensor

# Up to this width Inductor keeps a row on chip and sums the norm's weight gradient in the same kernel
# (seen at 2048, not at 4096).
PERSISTENT_WIDTH = 2048
PARTIALS = 256  # rows of partial sums of a norm's weight gradient

Late = list[Callable[[], None]]
Grads = list[Tensor | None]  # of a unit's parameters; None: of a frozen one

#: What units save for their own backward.
SAVES = {
    NORM: ("stat1",),
    ATTENTION: (
        "n1",
        *("q", "k", "v", "q before", "k before"),
        *("out", "lse", "share", "gate"),
    ),
    OUTPUT: ("merged", "x2", "projected", "stat2"),
    GATE: ("n2", "h1"),
    UP: ("h3", "act"),
    DOWN: ("prod",),
}


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
        self.live = set()
        self.first = ""  # the output whose gradient comes last
        # A graph of the whole block puts weight gradients off to its end; a part of it does not.
        self.whole = NORM in units and DOWN in units
        self.fused_mul = GATE in units and UP in units
        self.saved: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

    # -- pieces ---------------------------------------------------------------------------------
    def _takes(self, unit: int) -> tuple[str, ...]:
        """The values that a unit uses."""
        return uses(unit, self.gated)

    def _makes(self, unit: int) -> tuple[str, ...]:
        """The values that a unit makes."""
        return MAKES[unit]

    def _keep(self, name: str, x: Tensor, *weights: Tensor) -> None:
        """Saves the input of layers for backward, if it takes it, and what it takes of their weights."""
        if name not in self.saved and any(map(self._needs, weights)):
            self.saved[name] = self._kept(x)
        for w in weights:
            kept = self._kept_weight(w)
            if kept is not None:
                self.saved[f"weight {w.name}"] = kept

    # -- forward --------------------------------------------------------------------------------
    def forward_norm(self, v: dict[str, Tensor]) -> None:
        self._fused("fused_norm", self.width, 2 + self._dropped(*self._behind(NORM)))
        self.saved["x"], self.saved["stat1"] = v["x"], self._new(1, 4)
        v["n1"] = self._new(self.width)

    def forward_attention(self, v: dict[str, Tensor]) -> None:
        a, saved = self._plain, self.saved
        n1 = self._gathered(v.pop("n1"))
        q, k, saved["v"] = (self._linear(w, "n1") for w in (a.wq, a.wk, a.wv))
        self._keep("n1", n1, a.wq, a.wk, a.wv)
        del n1
        self._outputs_of_adapters()
        q = self._queries_of(q)
        saved["q"] = self._rotated(self._head_norm(q, "q"), "q")
        saved["k"] = self._rotated(self._head_norm(k, "k"), "k")
        del q, k
        width = a.heads * a.head_dim
        self._attend()
        saved["out"], saved["lse"] = self._new(width), self._new(a.heads, 4)
        self._with_sinks()
        v["merged"] = self._new(width)
        passes = 3 if a.gated else 2
        self._fused("fused_transpose", width, passes + self._dropped(a.wo))

    def forward_output(self, v: dict[str, Tensor]) -> None:
        merged, wo = v.pop("merged"), self.block.attention.wo
        projected = self._linear(wo, "merged")
        self._keep("merged", merged, wo)
        projected = self._summed(projected)
        del merged
        beside = self._read(wo) + self._dropped(*self._behind(OUTPUT))
        if DOWN in self.units and self._sums_again:
            self._fused("fused_add_norm", self.width, 3 + beside)
            self.saved["x"], self.saved["projected"] = v["x"], projected
        else:
            self._fused("fused_add_norm", self.width, 4 + beside)
            v["x2"] = self.saved["x2"] = projected  # in place
        self.saved["stat2"] = self._new(1, 4)
        v["n2"] = self._new(self.width)

    def forward_gate(self, v: dict[str, Tensor]) -> None:
        w1 = self.block.ffn.w1  # type: ignore[attr-defined]
        v["n2"] = self._gathered(v["n2"])
        self.saved["h1"] = self._linear(w1, "n2")
        self._keep("n2", v["n2"], w1)
        if not self.fused_mul:
            passes = 2.0 + self._read_and_kept(w1)
            passes += 0 if self.gated else self._dropped(self.block.ffn.w2)  # type: ignore[attr-defined]
            self._fused(f"fused_{self.activation}", w1.shape[0], passes)
            v["act"] = self._new(w1.shape[0])

    def forward_up(self, v: dict[str, Tensor]) -> None:
        f = self.block.ffn
        w1, w3, w2 = f.w1, f.w3, f.w2  # type: ignore[attr-defined]
        self.saved["h3"] = self._linear(w3, "n2")
        self._keep("n2", v["n2"], w3)
        if not self.fused_mul:
            self.saved["act"] = v.pop("act")
        joined = (w1, w3) if self.fused_mul else (w3,)
        self._fused(
            f"fused_{self.activation}_mul" if self.fused_mul else "fused_mul",
            w3.shape[0],
            3 + self._read_and_kept(*joined) + self._dropped(w2),
        )
        v["prod"] = self._new(w3.shape[0])

    def forward_down(self, v: dict[str, Tensor]) -> None:
        prod, w2 = v.pop("prod" if self.gated else "act"), self.block.ffn.w2  # type: ignore[attr-defined]
        self._keep("prod", prod, w2)
        del prod
        self.t.saves()  # what comes after is not computed again
        self._summed(self._linear(w2, "prod"))
        again = OUTPUT in self.units and self._sums_again
        self._fused("fused_add", self.width, (4 if again else 3) + self._read(w2))
        v["y"] = self._new(self.width)

    def _behind(self, unit: int) -> tuple[Tensor | None, ...]:
        """The weights that take a norm's output."""
        part = "attention" if unit == NORM else "ffn"
        names = ("wq", "wk", "wv") if unit == NORM else ("w1", "w3")
        layer = getattr(self.block, part, None)
        return tuple(getattr(layer, name, None) for name in names)

    @property
    def _sums_again(self) -> bool:
        """Whether backward forms the residual sum again: not of three values, nor of an input that else is gone."""
        return self.block.attention.wo not in self.adapters and "x" in self.live

    def _read_and_kept(self, *weights: Tensor) -> float:
        """Further passes of a kernel that reads layers' outputs and writes their sums with adapters' for backward."""
        return self._read(*weights) + sum(w in self.adapters for w in weights)

    # -- backward -------------------------------------------------------------------------------
    def _send(
        self, g: dict[str, Tensor], part: str, value: str, w: Tensor, made: bool = True
    ) -> None:
        """Puts a part of the gradient of a layer's input, `value`, into ``g``, if it is wanted; an adapter's beside."""
        wanted = value in self.live
        beside = self._adapter_grads(w, made, wanted)
        if wanted:
            g[part] = self._data_grad(w, made)
        for each in beside:
            g[f"{part} beside"] = each

    def backward_down(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        w2 = self.block.ffn.w2  # type: ignore[attr-defined]
        whole = self._gathered(g["y"])
        w.append(self._weight_grad(w2, "prod", self.saved.pop("prod", None), whole))
        inner = "prod" if self.gated else "act"
        self._send(g, inner, inner, w2, made=False)
        g["x2"] = g.pop("y")

    def backward_up(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        f = self.block.ffn
        w1, w3, w2 = f.w1, f.w3, f.w2  # type: ignore[attr-defined]
        n2 = self.saved.get("n2")
        beside = self._gradient_read(g, "prod", w2)
        if (
            self.fused_mul
        ):  # both factors' gradients in one kernel, the products after it
            passes = 5 + beside + self._scaled(w1, w3)
            self._fused(f"fused_{self.activation}_mul_bwd", w3.shape[0], passes)
            g["h1"], g["h3"] = g.pop("prod"), self._new(w3.shape[0])
            del self.saved["h3"]
            self._later(late, w, w3, "n2", g["h3"], n2)
            self._send(g, "n2 up", "n2", w3)
            del g["h3"]
            return
        self._fused("fused_mul_bwd", w3.shape[0], 5 + beside + self._scaled(w3))
        g["act"], inner = g.pop("prod"), self._new(w3.shape[0])
        w.append(self._weight_grad(w3, "n2", inner, n2))
        self._send(g, "n2 up", "n2", w3)
        self._join_norm(g, "n2 up")

    def backward_gate(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        f = self.block.ffn
        w1, w2 = f.w1, f.w2  # type: ignore[attr-defined]
        if not self.fused_mul:
            beside = 0.0 if self.gated else self._gradient_read(g, "act", w2)
            passes = 3 + beside + self._scaled(w1)
            self._fused(f"fused_{self.activation}_bwd", w1.shape[0], passes)
            g["h1"] = g.pop("act")
        inner = g.pop("h1")
        del self.saved["h1"]
        self._later(late, w, w1, "n2", inner, self.saved.get("n2"))
        self._send(g, "n2 gate", "n2", w1)
        self._join_norm(g, "n2 gate")

    def _gradient_read(self, g: dict[str, Tensor], name: str, w: Tensor) -> float:
        """Further passes of a kernel that reads the gradient of a layer's input, whose adapter's part is used up."""
        return 0.0 if g.pop(f"{name} beside", None) is None else 1 + self._masked(w)

    def _parts(self, g: dict[str, Tensor], *names: str) -> list[Tensor]:
        """The parts of a gradient that the next kernel adds up, adapters' beside them."""
        both = [each for name in names for each in (name, f"{name} beside")]
        return [g.pop(name) for name in both if name in g]

    def _join_norm(self, g: dict[str, Tensor], part: str) -> None:
        """Outside a graph with the norm, the parts of its output's gradient become one."""
        if OUTPUT in self.units or part not in g:
            return
        parts = self._parts(g, "n2", part) if f"{part} beside" in g else [g.pop(part)]
        if len(parts) > 1:
            self._fused("fused_add", self.width, len(parts) + 1)
        g.setdefault("n2", parts[0])

    def _later(
        self,
        late: Late,
        w: Grads,
        weight: Tensor,
        name: str,
        *needed: Tensor | None,
    ) -> None:
        """A weight gradient now or, in a graph of the whole block, after everything else."""
        if not (self.whole and weight.requires_grad):
            w.append(self._weight_grad(weight, name, *needed))
            return
        at = len(w)
        w.append(weight)  # keeps the place
        late.append(lambda: w.__setitem__(at, self._weight_grad(weight, name, *needed)))

    def backward_output(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        wo = self.block.attention.wo
        beside = sum(f"{name} beside" in g for name in ("n2", "n2 up", "n2 gate"))
        parts = self._parts(g, "n2", "n2 up", "n2 gate")
        read = len(parts)
        parts = self._summed_gradient(parts) if self.whole else parts
        passes = (6.0 if "projected" in self.saved else 5.0) - (read - len(parts))
        passes += beside + self._masked(*self._behind(OUTPUT)) + self._scaled(wo)
        self._fused("fused_norm_bwd", self.width, passes)
        g["x2"] = self._new(self.width)
        norms = self._norm_weights(self.block.norm2.parameters)
        whole = self._gathered(g["x2"])
        self._later(late, w, wo, "merged", whole, self.saved.get("merged"))
        w += norms
        self._send(g, "merged", "merged", wo)
        g["x"] = g.pop("x2")
        del parts
        for name in ("merged", "stat2", "x2", "projected"):
            self.saved.pop(name, None)

    def _norm_weights(self, parameters: list[Tensor]) -> Grads:
        """Column sums of a norm's gradient: inside the fused kernel as partial sums, else in one of their own."""
        t, width = self.t, self.width
        if not parameters[0].requires_grad:
            return [None] * len(parameters)
        if width <= PERSISTENT_WIDTH:
            t.launch(
                Kernel("sum", (PARTIALS * width,), "fp32", bytes=4.0 * PARTIALS * width)
            )
            t.launch(Kernel("fused_cast", (width,), bytes=6.0 * width))
        elif not self.whole:
            self._fused("fused_norm_bwd_weight", width, 3)
            t.launch(Kernel("fused_sum", (width,), bytes=66.0 * width))
        return [t.empty(p.shape, p.itemsize) for p in parameters]

    def _outputs_of_adapters(self) -> None:
        """Sums of projections and adapters that no kernel behind reads: of values, and of what is not rotated."""
        a = self._plain
        apart = a.gated or not (a.rotary or a.norms)
        for w in (a.wq, a.wk, a.wv):
            if w is a.wv or apart:
                self._add_up(w)

    def _merged_gradient(self, g: dict[str, Tensor]) -> None:
        """The gradient of attention's output, of two parts where the projection behind has an adapter."""
        wo = self.block.attention.wo
        beside = self._gradient_read(g, "merged", wo)
        if beside:
            self._fused("fused_add", wo.shape[1], 2 + beside)

    def backward_attention(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        self._merged_gradient(g)
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
        self.saved.pop("n1", None)
        if NORM not in self.units and "n1" in self.live:
            parts = self._parts(g, "q", "k", "v")
            passes = 1 + len(parts) + self._masked(*self._behind(NORM))
            self._fused("fused_add", self.width, passes)
            g["n1"] = parts[0]

    def _projections_in_a_block(
        self,
        grads: dict[str, Tensor],
        g: dict[str, Tensor],
        w: Grads,
        late: Late,
    ) -> None:
        """Backward of the projections in a graph of the whole block: the queries' weight gradient comes late."""
        self._unrotate("k", "q")
        norms = self._head_norm_gradients("k", "q")
        n1 = self.saved.get("n1")
        wk = self._weight_grad(self._projection("k"), "n1", grads["k"], n1)
        wv = self._weight_grad(self._projection("v"), "n1", grads["v"], n1)
        for name in ("v", "k", "q"):
            self._send(g, name, "n1", self._projection(name), made=name != "v")
        self._later(late, w, self._projection("q"), "n1", grads["q"], n1)
        w += [wk, wv, *norms]

    def _projections_apart(
        self, grads: dict[str, Tensor], g: dict[str, Tensor], w: Grads
    ) -> None:
        """Backward of the projections, one after the other."""
        weights: dict[str, Tensor | None] = {}
        norms: Grads = []
        for name in ("v", "k", "q"):
            if name != "v":
                self._unrotate(name)
                norms = self._head_norm_gradients(name)
            weight = self._projection(name)
            weights[name] = self._weight_grad(
                weight, "n1", grads.pop(name), self.saved.get("n1")
            )
            self._send(g, name, "n1", weight, made=name != "v")
        w += [*(weights[name] for name in ("q", "k", "v")), *norms]

    def _input_gradient(self, parts: list[Tensor]) -> list[Tensor]:
        """The gradient of the attention's input, of this rank's tokens; or parts that the next kernel adds up."""
        return self._summed_gradient(parts)

    def backward_norm(self, g: dict[str, Tensor], w: Grads, late: Late) -> None:
        parts = self._input_gradient(self._parts(g, "n1", "q", "k", "v"))
        trains = self.block.norm1.parameters[0].requires_grad
        # both norms' weights at once
        together = trains and self.whole and self.width > PERSISTENT_WIDTH
        if together:
            self._fused("fused_norm_bwd_weight", self.width, 7)
        passes = 3.0 + len(parts)
        if ATTENTION in self.units:
            passes += self._masked(*self._behind(NORM))
        self._fused("fused_norm_bwd", self.width, passes)
        for _ in range(2 if together else 0):
            self.t.launch(Kernel("fused_sum", (self.width,), bytes=66.0 * self.width))
        w += self._norm_weights(self.block.norm1.parameters)
        g["x"] = self._new(self.width)
        del parts, self.saved["x"], self.saved["stat1"]


def live_in(values: Sequence[str], live: set[str]) -> bool:
    """Whether the gradient of one of some values is wanted."""
    return not live.isdisjoint(values)
