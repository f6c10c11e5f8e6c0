"""Cross entropy of logits whose vocabulary is split over tensor-parallel ranks (DTensor's `loss_parallel`).

Operators are those of torch/distributed/tensor/parallel/loss.py: ranks agree on the largest logit of a token, on the
sum of exponentials and on the target's logit, each a number a token; nobody has all logits of one. Log-probabilities
are kept; the backward pass makes the gradient of the logits at once, and exchanges nothing.
"""

from __future__ import annotations

from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

NUMBER = 4.0  # bytes of a number that ranks agree on, in fp32


def cross_entropy(t: Tape, logits: Tensor, group: Group) -> Tensor:
    """The loss of this rank's part of the logits, in the type that they have."""
    tokens, wide = logits.elements // logits.shape[-1], logits.itemsize
    agree = partial(exchange, t, "all_reduce", NUMBER * tokens, group)
    over = partial(_over, t, logits.elements, wide)
    t.cpu("loss")
    over(1, "fused_reduction")  # the largest
    agree()
    over(2)
    shifted = t.empty(logits.shape, wide)
    over(2)
    powers = t.empty(logits.shape, wide)
    over(1, "fused_reduction")  # their sum
    del powers
    agree()
    over(2)
    logp = t.empty(logits.shape, wide)
    del shifted
    t.launch(Kernel("fused", (tokens,), bytes=4 * NUMBER * tokens))  # the target's
    agree()
    return t.apply(t.empty((1,), wide), [logits], partial(_backward, t, logp))


def _backward(t: Tape, logp: Tensor, _: Tensor) -> list[Tensor | None]:
    """The gradient of the logits from their log-probabilities."""
    shape, wide = logp.shape, logp.itemsize
    over = partial(_over, t, logp.elements, wide)
    t.cpu("loss_backward")
    over(1)
    picked = t.empty(shape, wide)  # zeros, but for targets
    over(2)
    powers = t.empty(shape, wide)
    over(3)
    both = t.empty(shape, wide)
    del powers
    over(2)
    gradient = t.empty(shape, wide)
    del both, picked
    return [gradient]


def _over(t: Tape, n: int, wide: int, passes: int, kind: str = "fused") -> None:
    """An operation that reads or writes each of `n` numbers of `wide` bytes so often."""
    t.cpu("elementwise")
    t.launch(Kernel(kind, (n,), bytes=float(passes * wide * n)))
