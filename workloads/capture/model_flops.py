"""Arithmetic of a recorded program's model, without what is computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.recording import RankRecording, Recording

#: Value of an event's "backward" for what a checkpointed layer computes again.
AGAIN = 2
#: Fused attention's backward computes the scores again: five products, of which four are the gradients'
#: (FlashAttention-2, arXiv 2307.08691, section 4.1: backward has 2.5 times the arithmetic of forward).
GRADIENTS_OF_ATTENTION = 4 / 5


def model_flops(recording: Recording, kernels: Sequence[Sequence[Kernel]]) -> float:
    """Flops of a step over all ranks, as MFU counts them: recomputation is left out.

    Parameters
    ----------
    kernels
        The kernels of every operation of the recording.

    Returns
    -------
    float
        nan where the file does not tell recomputation from backward.
    """
    if not recording.recomputation:
        return math.nan
    useful = [math.fsum(map(_useful, each)) for each in kernels]
    return math.fsum(
        _of_rank(rank, useful) * len(rank.represents) for rank in recording.ranks
    )


def _of_rank(rank: RankRecording, useful: Sequence[float]) -> float:
    return math.fsum(
        useful[event.values["operation"]]
        for event in rank.events
        if event.values.get("backward", AGAIN) != AGAIN and "operation" in event.values
    )


def _useful(kernel: Kernel) -> float:
    """Flops of a kernel that its model asks for."""
    is_backward = kernel.kind.endswith("_backward") and "attention" in kernel.kind
    return kernel.flops * (GRADIENTS_OF_ATTENTION if is_backward else 1.0)
