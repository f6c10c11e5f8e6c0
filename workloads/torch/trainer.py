"""What a PyTorch trainer adds to a step beside the model: metrics, gradient norms, optimizers tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operand
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

with lazily():
    from prestep.workloads.torch import updates

NORM = "nccl norm"
#: From the norm of all gradients to their factor: ``clamp(largest / (norm + 1e-6), max=1)``.
SCALE: tuple[tuple[str, tuple[float | None, ...]], ...] = (
    *(("add.Tensor", (1e-6,)), ("reciprocal.default", ())),
    *(("mul.Tensor", (1.0,)), ("clamp.default", (None, 1.0))),
)


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


def clip(
    t: Tape, tensors: Sequence[Tensor], wide: int, groups: Sequence[Group] = ()
) -> None:
    """``torch.nn.utils.clip_grad_norm_``: norms of all gradients, their norm, and the gradients scaled by it.

    ``groups``: of ranks that each have a part of the gradients, over which squares of norms are summed, an axis each.
    """
    grads = updates.operands(tensors, wide)
    norms, number = (Operand(DTYPES[wide], ()),) * len(grads), Operand(DTYPES[wide], ())
    together = Operand(DTYPES[wide], (len(grads),))
    updates.call(t, "_foreach_norm.Scalar", grads, 2.0, results=norms)
    updates.call(t, "stack.default", norms, results=(together,))
    updates.call(t, "linalg_vector_norm.default", together, 2.0, results=(number,))
    for group in groups:
        if group.size > 1:
            group.collective(t, "all_reduce", 4.0, NORM)
            t.wait(t.record(NORM))
    for name, more in SCALE:
        updates.call(t, name, number, *more, results=(number,))
    updates.call(t, "_foreach_mul_.Tensor", grads, number)
