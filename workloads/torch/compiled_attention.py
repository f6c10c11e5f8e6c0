"""Heads of attention in compiled blocks: their norms and rotation, attention's kernel, and the way back."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.parallel.context import Shapes
from workloads.torch.compiled_tensor import Split
from workloads.torch.tape import Tape, Tensor


class Heads(Split):
    """Queries, keys and values between their projections and the output's.

    Attributes
    ----------
    saved : dict
        Values that backward finds, by name.
    """

    saved: dict[str, Tensor]

    @property
    def width(self) -> int:
        return int(self.block.attention.wq.shape[1])

    def _head_norm(self, x: Tensor, name: str) -> Tensor:
        """Queries or keys after the norm of each head, if the model has one; its input is kept for backward."""
        if not self.block.attention.norms:
            return x
        width = self._widths()[name]
        self._fused("fused_norm", width, 2)
        self.saved[f"{name} before"] = x
        return self._new(width)

    def _head_norm_gradients(self, *names: str) -> list[Tensor]:
        """Backward of the heads' norms: gradients of queries and keys in place, and those of the weights."""
        norms = self.block.attention.norms
        for name in names if norms else ():
            self._fused("fused_norm_bwd", self._widths()[name], 3)
            del self.saved[f"{name} before"]
            head = self.block.attention.head_dim
            self.t.launch(Kernel("fused_sum", (head,), bytes=66.0 * head))
        return [self.t.empty(p.shape, p.itemsize) for p in norms]

    def _rotated(self, x: Tensor, heads: int) -> Tensor:
        """Queries or keys after the rotary embedding, if the model has one."""
        a = self.block.attention
        if not a.rotary:
            return x
        rotated = self._new(heads * a.head_dim)
        self._fused("fused_rope", heads * a.head_dim, 2)
        return rotated

    def _attention_kernel(self, kind: str) -> Kernel:
        """Backward moves twice the bytes of forward, and computes five products for two."""
        a, (b, s) = self.block.attention, self.t.documents(*self.whole_rows)
        forward = kind == "attention_fwd"
        operations, bytes_ = (1.0, 1.0) if forward else (2.5, 2.0)
        flops = 2.0 * b * a.heads * s * s * a.head_dim * operations
        moved = 4.0 * b * s * a.head_dim * (a.heads + a.kv) * bytes_
        choices = self.t.choices
        name = (
            "flash2_" if choices is not None and choices.attention == "flash2" else ""
        )
        shape = (b, a.heads, a.kv, s, a.head_dim)
        return Kernel(name + kind, shape, bytes=moved, flops=flops)

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

    def _shapes(self) -> Shapes:
        """Of this rank's part of the attention."""
        tokens, widths = self.tokens, self._widths()
        rows = tokens * self.block.attention.heads
        return Shapes(tokens * widths["q"], tokens * widths["k"], rows)

    def _widths(self) -> dict[str, int]:
        """Widths of queries, keys and values."""
        a = self.block.attention
        keys = a.kv * a.head_dim
        return {"q": a.heads * a.head_dim, "k": keys, "v": keys}

    def _projection(self, name: str) -> Tensor:
        """The weight that makes queries, keys or values."""
        a = self.block.attention
        return {"q": a.wq, "k": a.wk, "v": a.wv}[name]

    def _unrotate(self, *names: str) -> None:
        """The rotation's and the transpose's backward in one kernel."""
        rotary = self.block.attention.rotary
        kind = "fused_rope_bwd" if rotary else "fused_transpose"
        for name in names:
            self._fused(kind, self._widths()[name], 2)
