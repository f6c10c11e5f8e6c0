"""Attention that is no operator of PyTorch: kernels by their sizes, and FlashAttention in Triton (2022)."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators.attention import heads_behind
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True)
class Widths:
    """Of a head's queries and keys, and of its values, which latent attention has narrower.

    A fused kernel is that of heads as wide as its products are on average (Megatron's `mla.py` has the same).
    """

    query: int
    value: int

    @property
    def forward(self) -> int:
        """Scores are as wide as queries, and weigh values."""
        return (self.query + self.value) // 2

    @property
    def backward(self) -> int:
        """Three of five products are as wide as queries, two as values."""
        return round((3 * self.query + 2 * self.value) / 5)

    def products(self, backward: bool) -> int:
        """Widths of all products together."""
        return 3 * self.query + 2 * self.value if backward else self.query + self.value


def attention_kernel(
    name: str,
    heads: int,
    groups: int,
    samples: int,
    tokens: int,
    widths: Widths,
    moved: float,
) -> Kernel:
    """A causal attention kernel, whose products leave out what is masked: half. `moved`: its bytes."""
    backward = name.endswith("bwd")
    width = widths.backward if backward else widths.forward
    flops = float(samples * heads * tokens**2 * widths.products(backward))
    shape = (samples, heads, groups, tokens, width)
    latent = widths.query != widths.value and not name.startswith("flash2")
    layout = "latent" if latent else ""
    return Kernel(name, shape, layout=layout, bytes=moved, flops=flops)


def kernel_of(t: Tape, q: Tensor, k: Tensor, v: Tensor, way: str) -> Kernel:
    """Its kernel of a pass; backward moves twice the bytes, and computes five products for two."""
    widths = Widths(q.shape[-1], v.shape[-1])
    moved = q.size + k.size + v.size + q.size * widths.value / widths.query
    documents = t.documents(q.shape[0], q.shape[2])
    of = q.shape[1], k.shape[1], *documents, widths
    return attention_kernel(
        f"triton_attention_{way}", *of, moved * (2 if way == "bwd" else 1)
    )


def gradients(g: Tensor, t: Tape, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Triton's backward (flash_attn_triton.py, _flash_attn_backward).

    It first sums output times gradient for each row, and adds the queries' gradient up in fp32, which is zeroed before
    and copied after.
    """
    sums = t.empty(q.shape, 4)
    t.launch(Kernel("fused", (q.elements,), bytes=2 * q.size))
    t.launch(Kernel("fused", (q.elements,), bytes=4.0 * q.elements))
    t.launch(kernel_of(t, q, k, v, "bwd"))
    t.launch(Kernel("fused", (q.elements,), bytes=6.0 * q.elements))
    grads = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
    for grad in grads:
        grad.strides = heads_behind(grad.shape)
    del sums
    return grads
