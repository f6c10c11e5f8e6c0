"""Vocabulary-parallel cross entropy (megatron/core/tensor_parallel/cross_entropy.py)."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.extras import lazily
from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():  # a DTensor's loss
    from prestep.workloads.parallel import tensor
    from prestep.workloads.torch import written_out


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
    """

    forward: tuple[tuple[float, float], ...]
    backward: tuple[float, ...]
    saved: int = 4
    op: str = "all_reduce"


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
BY_NAME = {"native": FUSED, "te": ENGINE}
#: PyTorch's, and whether it is behind a cast to fp32.
OF_TORCH = {"torch": False, "torch-fp32": True}


def cross_entropy(t: Tape, logits: Tensor, s: Shard) -> Tensor:
    """Cross entropy with small exchanges between ranks; saves the probabilities, or gradients in the logits' place.

    Of a DTensor, PyTorch's gathers all logits on every rank, in the type of the loss, and makes it whole
    (nemo_automodel/components/loss/masked_ce.py: `float`, then `full_tensor`). Backward a rank takes its own part.
    """
    name = s.options.cross_entropy_fusion_impl if s.options.cross_entropy_fusion else ""
    if name not in OF_TORCH:
        return _in_passes(t, logits, s, BY_NAME.get(name, PLAIN))
    if OF_TORCH[name]:
        logits = written_out.widened(t, logits)
    if s.dtensors:
        logits = tensor.TensorParallel(s.group).columns(t, logits)
    return aten.cross_entropy(t, logits)


def _in_passes(t: Tape, logits: Tensor, s: Shard, passes: Passes) -> Tensor:
    """By kernels that pass over this rank's logits."""
    n, shape, itemsize = logits.elements, logits.shape, logits.itemsize
    t.cpu("loss", 3)
    for moved, exchanged in passes.forward:
        pass_over(t, n, moved * n)
        _exchange(t, passes.op, exchanged, s)
    saved = t.empty(shape, passes.saved) if passes.saved else logits

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, saved)
        t.cpu("loss_backward")
        for moved in passes.backward:
            pass_over(t, n, moved * n)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), 4), [logits], backward)


def _exchange(t: Tape, op: str, size: float, s: Shard) -> None:
    """So many bytes of each token, between the ranks that share the vocabulary."""
    if not size or s.group.size == 1:
        return
    copies = s.group.size if op == "all_gather" else 1
    exchange(t, op, s.tokens * s.batch * size * copies, s.group)
