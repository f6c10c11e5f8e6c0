"""FlashAttention in Triton (2022), which is no operator of PyTorch: its kernels by their sizes."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators.attention import heads_behind
from prestep.workloads.torch.tape import Tape, Tensor


def kernel_of(t: Tape, q: Tensor, k: Tensor, v: Tensor, way: str) -> Kernel:
    """Its kernel of a pass, whose products leave out what is masked: half; backward five of them, forward two."""
    heads, width = q.shape[1], q.shape[-1]
    samples, tokens = t.documents(q.shape[0], q.shape[2])
    passes, products = (2, 5) if way == "bwd" else (1, 2)
    shape = (samples, heads, k.shape[1], tokens, width)
    moved = passes * (2 * q.size + k.size + v.size)
    flops = float(samples * heads * tokens**2 * products * width)
    return Kernel(f"triton_attention_{way}", shape, bytes=moved, flops=flops)


def gradients(g: Tensor, t: Tape, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Triton's backward (flash_attn_triton.py, _flash_attn_backward).

    It first sums output times gradient for each row, and adds the queries' gradient up in fp32, which is zeroed before
    and copied after.
    """
    sums = t.empty(q.shape, 4)
    t.cpu("triton_function_backward")
    t.launch(Kernel("fused", (q.elements,), bytes=2 * q.size))
    t.launch(Kernel("fused", (q.elements,), bytes=4.0 * q.elements))
    t.launch(kernel_of(t, q, k, v, "bwd"))
    t.launch(Kernel("fused", (q.elements,), bytes=6.0 * q.elements))
    grads = [t.empty(x.shape, x.itemsize) for x in (q, k, v)]
    for grad in grads:
        grad.strides = heads_behind(grad.shape)
    del sums
    return grads
