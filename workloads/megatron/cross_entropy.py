"""Vocabulary-parallel cross entropy (megatron/core/tensor_parallel/cross_entropy.py)."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.megatron.elementwise import pass_over
from workloads.megatron.shard import Shard
from workloads.megatron.tensor_parallel import begin, finish
from workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True)
class Passes:
    """Passes over the fp32 logits.

    Attributes
    ----------
    forward : tuple of (float, float)
        Bytes moved for a logit by each pass, and bytes of a token that ranks sum after it.
    backward : tuple of float
        Bytes moved for a logit.
    """

    forward: tuple[tuple[float, float], ...]
    backward: tuple[float, ...]


# Cast, maximum, subtraction, exponential, sum, division; backward: one-hot subtraction with scaling, the cast back.
PLAIN = Passes(
    ((6.0, 0.0), (4.0, 4.0), (8.0, 0.0), (8.0, 4.0), (4.0, 4.0), (8.0, 0.0)),
    (8.0, 8.0, 6.0),
)
# Two values of a token are summed in one all-reduce.
FUSED = Passes(((6.0, 0.0), (8.0, 4.0), (8.0, 8.0)), (10.0,))


def cross_entropy(t: Tape, logits: Tensor, s: Shard) -> Tensor:
    """Cross entropy in fp32 with small all-reduces; saves the probabilities."""
    passes = FUSED if s.options.cross_entropy_fusion else PLAIN
    n = logits.elements
    t.cpu("loss", 3)
    for moved, summed in passes.forward:
        pass_over(t, n, moved * n)
        if summed and s.group.size > 1:
            begin(t, "all_reduce", s.tokens * s.batch * summed, s.group)
            finish(t)
    probabilities = t.empty(logits.shape, 4)
    shape, itemsize = logits.shape, logits.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, probabilities)
        t.cpu("loss_backward")
        for moved in passes.backward:
            pass_over(t, n, moved * n)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), 4), [logits], backward)
