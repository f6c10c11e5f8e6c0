"""Vocabulary-parallel cross entropy (megatron/core/tensor_parallel/cross_entropy.py)."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True)
class Passes:
    """Passes over the logits.

    Attributes
    ----------
    forward : tuple of (float, float)
        Bytes moved for a logit by each pass, and bytes of a token that ranks exchange after it.
    backward : tuple of float
        Bytes moved for a logit.
    saved : int
        Bytes of a logit's probability that are kept for backward.
    op : str
        Collective that exchanges.
    casts : bool
        The first pass and the last of backward change the type of the logits, each rank those of its own words.
    """

    forward: tuple[tuple[float, float], ...]
    backward: tuple[float, ...]
    saved: int = 4
    op: str = "all_reduce"
    casts: bool = False


# Cast, maximum, subtraction, exponential, sum, division; backward: one-hot subtraction with scaling, the cast back.
PLAIN = Passes(
    ((6.0, 0.0), (4.0, 4.0), (8.0, 0.0), (8.0, 4.0), (4.0, 4.0), (8.0, 0.0)),
    (8.0, 8.0, 6.0),
)
# Two values of a token are summed in one all-reduce.
FUSED = Passes(((6.0, 0.0), (8.0, 4.0), (8.0, 8.0)), (10.0,))
# Transformer Engine's kernels (common/triton/cross_entropy.py) take logits in 16 bits: one reads them for the maximum
# and the sum of exponentials, three floats of a token that all ranks gather; one reads them and writes their gradients
# in their place, which backward scales.
ENGINE = Passes(((2.0, 12.0), (4.0, 0.0)), (4.0,), saved=0, op="all_gather")
# PyTorch's log_softmax, of which nll_loss takes one value a token; backward: its gradients, zero but there, and those
# of the logits from them and from the result. In 16 bits, or behind a cast to fp32 and before one back.
TORCH = Passes(((4.0, 0.0),), (2.0, 6.0), saved=2)
TORCH_WIDE = Passes(((6.0, 0.0), (8.0, 0.0)), (4.0, 12.0, 6.0), casts=True)
GATHERING = ("torch", "torch-fp32")
BY_NAME = {"native": FUSED, "te": ENGINE, "torch": TORCH, "torch-fp32": TORCH_WIDE}


def passes_of(o: Megatron) -> Passes:
    """Passes of the implementation that a run asks for."""
    return BY_NAME[o.cross_entropy_fusion_impl] if o.cross_entropy_fusion else PLAIN


def cross_entropy(t: Tape, logits: Tensor, s: Shard) -> Tensor:
    """Cross entropy with small exchanges between ranks; saves the probabilities, or gradients in the logits' place.

    Of a DTensor, PyTorch's gathers all logits on every rank, in the type of the loss, and makes it whole
    (nemo_automodel/components/loss/masked_ce.py: `float`, then `full_tensor`). Backward a rank takes its own part.
    """
    passes, n = passes_of(s.options), logits.elements
    whole = s.dtensors and s.options.cross_entropy_fusion_impl in GATHERING
    every, casts = (n * s.group.size, int(passes.casts)) if whole else (n, 0)
    wide = 4 if passes.casts else logits.itemsize
    t.cpu("loss", 3)
    for at, (moved, exchanged) in enumerate(passes.forward):
        if whole and at == casts:
            exchange(t, "all_gather", float(wide * every), s.group)
        count = n if at < casts else every
        pass_over(t, count, moved * count)
        _exchange(t, passes.op, exchanged, s)
    shape, itemsize = logits.shape, logits.itemsize
    kept = (every,) if whole else shape
    saved = t.empty(kept, passes.saved) if passes.saved else logits

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, saved)
        t.cpu("loss_backward")
        cut = len(passes.backward) - casts
        for moved in passes.backward[:cut]:
            pass_over(t, every, moved * every)
        for moved in (*([2.0 * wide] if whole else []), *passes.backward[cut:]):
            pass_over(t, n, moved * n)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), 4), [logits], backward)


def _exchange(t: Tape, op: str, size: float, s: Shard) -> None:
    """So many bytes of each token, between the ranks that share the vocabulary."""
    if not size or s.group.size == 1:
        return
    copies = s.group.size if op == "all_gather" else 1
    exchange(t, op, s.tokens * s.batch * size * copies, s.group)
