"""Loss scaling for fp16 (torch.amp.GradScaler): the scaled loss, gradients unscaled and searched for infinities.

Source: torch/amp/grad_scaler.py and aten/src/ATen/native/cuda/AmpKernels.cu of PyTorch 2.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl loss scale"
TENSORS = 110  # that one launch of a foreach kernel takes
NUMBER = 4.0  # bytes of the scale, and of the flag


def scale(t: Tape) -> None:
    """The loss times the scale."""
    t.cpu("elementwise")
    t.launch(Kernel("mul", (1,), bytes=3 * NUMBER))


@dataclass(frozen=True)
class LossScaler:
    """Loss scaling of one rank.

    Attributes
    ----------
    groups : tuple of Group
        Ranks that each have a part of the gradients, and so must tell each other of infinities; an axis each.
    """

    groups: tuple[Group, ...] = ()

    def unscale(self, t: Tape, stored: Sequence[Tensor], wide: int) -> None:
        """Gradients divided by the scale where they lie, a flag for infinities, and the next scale.

        ``wide`` are the bytes of a gradient.
        """
        elements = sum(p.elements for p in stored)
        t.cpu("elementwise_nograd", -(-len(stored) // TENSORS))
        t.launch(Kernel("fused", (elements,), bytes=2.0 * wide * elements))
        for group in self.groups:
            group.collective(t, "all_reduce", NUMBER, STREAM)
            t.wait(t.record(STREAM))
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (1,), bytes=3 * NUMBER))
