"""Heads of attention in compiled blocks: their norms and rotation, attention's kernel, and the way back."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.torch_context import Shapes
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.torch.attention import in_window
from prestep.workloads.torch.attention_kernels import Widths, attention_kernel
from prestep.workloads.torch.block import Attention
from prestep.workloads.torch.compiled_tensor import Split
from prestep.workloads.torch.tape import Tape, Tensor


class Heads(Split):
    """Queries, keys and values between their projections and the output's.

    Attributes
    ----------
    saved : dict
        Values that backward finds, by name.
    live : set of str
        Values whose gradients are wanted.
    """

    saved: dict[str, Tensor]
    live: set[str]

    @property
    def width(self) -> int:
        """Of the block's input."""
        return int(self.block.norm1.parameters[0].shape[0])

    @property
    def choices(self) -> PyTorch | None:
        """The trainer's; None: the defaults."""
        return self.t.choices

    @property
    def _head(self) -> Widths:
        """Of queries and values, head by head."""
        width = self._plain.head_dim
        return Widths(width, width)

    @property
    def _window(self) -> int:
        """Tokens that a query looks back; 0: all."""
        return self._plain.window

    @property
    def _plain(self) -> Attention:
        """The block's attention, if it is not a latent one."""
        layer = self.block.attention
        assert isinstance(layer, Attention)
        return layer

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        """Queries or keys after the norm of each head, if the model has one; its input is kept for backward."""
        if not self._plain.norms:
            return x
        width = self._widths()[name]
        beside = 0.0 if self._plain.gated else 2 * self._read(self._projection(name))
        self._fused("fused_norm", width, 2 + beside)
        self.saved[f"{name} before"] = x
        return self._new(width)

    def _head_norm_gradients(self, *names: str) -> list[Tensor | None]:
        """Backward of the heads' norms: gradients of queries and keys in place, and those of the weights."""
        norms = self._plain.norms
        for name in names if norms else ():
            passes = 3 + self._scaled(self._projection(name))
            self._fused("fused_norm_bwd", self._widths()[name], passes)
            del self.saved[f"{name} before"]
            head = self._plain.head_dim
            if not norms[0].requires_grad:
                continue
            self.t.launch(Kernel("fused_sum", (head,), bytes=66.0 * head))
        return [self._grad_like(p) for p in norms]

    def _grad_like(self, p: Tensor) -> Tensor | None:
        """A gradient that a kernel has made; None: the parameter is frozen."""
        return self.t.empty(p.shape, p.itemsize) if p.requires_grad else None

    def _rotated(self, x: Tensor, name: str) -> Tensor:
        """Queries or keys after the rotary embedding, if the model has one."""
        a, width = self._plain, self._widths()[name]
        if not a.rotary:
            return x
        rotated = self._new(width)
        added = bool(a.norms) or a.gated  # by an earlier kernel
        beside = 0.0 if added else self._read(self._projection(name))
        self._fused("fused_rope", width, 2 + beside)
        return rotated

    def _attention_kernel(self, kind: str) -> Kernel:
        """Backward moves twice the bytes of forward, and computes five products for two."""
        sizes, head = self._widths(), self._head
        documents = self.t.documents(*self.whole_rows)
        b, s = in_window(*documents, self._window)
        heads, groups = sizes["q"] // head.query, sizes["k"] // head.query
        rows = documents[0] * documents[1]
        moved = 2.0 * rows * (sum(sizes.values()) + heads * head.value)
        moved *= 2.0 if kind == "attention_bwd" else 1.0
        flash2 = self.choices is not None and self.choices.attention == "flash2"
        name = f"flash2_{kind}" if flash2 else kind
        return attention_kernel(name, heads, groups, b, s, head, moved)

    def _attend(self) -> None:
        """Attention to all keys, which other ranks may have."""
        kernel = self._attention_kernel("attention_fwd")
        if self.t.ring is None:
            self.t.launch(kernel)
        else:
            self.t.ring.forward(self.t, self._shapes(), (kernel,))

    def _attend_backward(self) -> None:
        """Its way back."""
        kernel, ring = self._attention_kernel("attention_bwd"), self.t.ring
        if ring is None:
            self.t.launch(kernel)
            return

        def block(t: Tape, *tensors: Tensor) -> list[Tensor]:
            t.launch(kernel)
            return [t.empty(x.shape, x.itemsize) for x in tensors]

        q, k, v = (self.saved[name] for name in ("q", "k", "v"))
        ring.backward(self.t, self._shapes(), (q, k, v), block)

    def _with_sinks(self) -> Tensor | None:
        """Attention's output by the share that sinks leave to it, in the kernel that puts heads behind tokens."""
        if self._plain.sinks is None:
            return None
        self.saved["share"] = self._new(self._plain.heads, 4)
        return self._plain.sinks

    def _sinks_gradient(self) -> list[Tensor | None]:
        """Backward of that: the output's gradient in one kernel with sums of rows, which are summed for each head."""
        sinks = self._plain.sinks
        if sinks is None:
            return []
        heads = self._plain.heads
        self._fused("fused_mul_bwd", self._widths()["q"], 3)
        rows = self.tokens * heads
        if sinks.requires_grad:
            self.t.launch(Kernel("fused_reduction", (rows,), bytes=12.0 * rows))
        del self.saved["share"]
        return [self._grad_like(sinks)]

    def _queries_of(self, x: Tensor) -> Tensor:
        """Queries of what their projection made; the gates beside them, if there are some, are kept."""
        if not self._plain.gated:
            return x
        self.saved["gate"] = x
        return Tensor(x.storage, (*x.shape[:-1], self._widths()["q"]), x.itemsize)

    def _gate_gradient(self) -> None:
        """Backward of the output's gate in one kernel: reads gradient, output and gate, writes both gradients."""
        if self._plain.gated:
            self._fused("fused_mul_bwd", self._widths()["q"], 5)
            del self.saved["gate"]

    def _shapes(self) -> Shapes:
        """Of this rank's part of the attention."""
        tokens, widths = self.tokens, self._widths()
        rows = tokens * self.block.attention.heads
        queries, keys, values = (tokens * widths[name] for name in ("q", "k", "v"))
        return Shapes(queries, keys, values, rows * self._head.value, rows)

    def _widths(self) -> dict[str, int]:
        """Widths of queries, keys and values."""
        a = self._plain
        keys = a.kv * a.head_dim
        return {"q": a.heads * a.head_dim, "k": keys, "v": keys}

    def _projection(self, name: str) -> Tensor:
        """The weight that makes queries, keys or values."""
        a = self._plain
        return {"q": a.wq, "k": a.wk, "v": a.wv}[name]

    def _unrotate(self, *names: str) -> None:
        """The rotation's and the transpose's backward in one kernel."""
        rotary = self._plain.rotary
        kind = "fused_rope_bwd" if rotary else "fused_transpose"
        for name in names:
            w = self._projection(name)
            if "n1" not in self.live and w not in self.adapters:
                continue  # nobody wants it
            beside = 0 if self._plain.norms else self._scaled(w)
            self._fused(kind, self._widths()[name], 2 + beside)
