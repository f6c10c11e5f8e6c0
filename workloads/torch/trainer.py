"""What a PyTorch trainer adds to a step beside the model: metrics, gradient norms, optimizers tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes of fp32 that each kernel of a single-tensor AdamW moves for an element: both moments decayed, the gradient added
# to each, root, bias correction, epsilon, the update (torch/optim/adamw.py, _single_tensor_adamw).
ADAM_BYTES = (8.0, 12.0, 8.0, 12.0, 8.0, 8.0, 8.0, 16.0)
ROOTS = 4  # which of them is the root
CHUNKS = (
    320 * 65536
)  # elements that one launch over a list takes (ForeachUtils.h, MultiTensorApply.cuh)


def weighed(t: Tape, logits: list[Tensor], loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The loss of the first logits, and those of further predictions by a weight added to it; takes the logits."""
    total = loss(logits.pop(0))
    while logits:
        further = loss(logits.pop(0))
        total = aten.add(t, total, aten.mul_number(t, further, 0.1))
    return total


def fused_cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    """Loss in one kernel each way (FlashAttention's xentropy): saves the logits and a statistic per token."""
    shape, itemsize = logits.shape, logits.itemsize
    t.cpu("loss")
    t.launch(Kernel("fused", (logits.elements,), bytes=logits.size))
    kept = logits.view(*shape)
    kept.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("loss_backward")
        t.launch(Kernel("fused", (kept.elements,), bytes=2 * kept.size))
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), itemsize), [logits], backward)


def metric(t: Tape, elements: int) -> None:
    """A cross entropy in fp32, forward alone: 16-bit logits are cast first (autocast); log_softmax, nll_loss."""
    t.cpu("loss")
    if t.itemsize < 4:
        t.launch(Kernel("fused", (elements,), bytes=6.0 * elements))
    t.launch(Kernel("fused", (elements,), bytes=8.0 * elements))


def clip(t: Tape, tensors: Sequence[Tensor], wide: int) -> None:
    """Norm of the gradients, then the gradients scaled by it."""
    n = sum(p.elements for p in tensors)
    t.cpu("elementwise_nograd", len(tensors))
    t.launch(Kernel("fused", (n,), bytes=float(wide * n)))
    t.launch(Kernel("fused", (n,), bytes=2.0 * wide * n))


def adam(t: Tape, tensors: Sequence[Tensor], wide: int) -> None:
    """AdamW, each tensor by itself, eight kernels each; ``wide`` is the size of a parameter, gradient or moment."""
    for p in tensors:
        for moved in ADAM_BYTES:
            t.cpu("elementwise_nograd")
            t.launch(
                Kernel("fused", (p.elements,), bytes=moved * p.elements * wide / 4)
            )


def adam_together(t: Tape, tensors: Sequence[Tensor], wide: int) -> None:
    """AdamW over lists of tensors (``foreach``): the same passes, one operation each, and all roots at a time.

    Roots of the second moments are new tensors (torch/optim/adam.py, _multi_tensor_adam), as large as all parameters.
    """
    n = sum(p.elements for p in tensors)
    chunks = max(1, round(n / CHUNKS))
    roots: list[Storage] = []
    for place, moved in enumerate(ADAM_BYTES):
        t.cpu("elementwise_nograd")
        t.cpu("launch", chunks - 1)
        if place == ROOTS:
            roots.append(Storage(t.memory, float(n * wide), "workspace"))
        t.launch(Kernel("fused", (n,), bytes=moved * n * wide / 4))
