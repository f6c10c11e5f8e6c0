"""Who calls Megatron's layers, adds up their gradients and reduces them: Megatron itself, or DeepSpeed around it."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.job import Job
from workloads.megatron.replicated import Replicated
from workloads.megatron.zero import Zero, added_by_buckets


@dataclass(frozen=True)
class Engine:
    """What DeepSpeed does in other ways.

    Attributes
    ----------
    replicated
        How gradients of whole parameters are reduced.
    gathers
        Of activations that travel between stages in parts, in a backward pass.
    owns_gradients
        Whether PyTorch adds gradients up, not Megatron's own buffer.
    """

    replicated: type[Replicated] = Replicated
    gathers: int = 1
    owns_gradients: bool = False

    def added(self, scenario: Job) -> float | None:
        """Bytes moved for an element of a weight's gradient beyond its GEMM; None: into Megatron's own buffer."""
        p = scenario.parallel
        if p.data_parallel == "zero2" and p.dp * p.cp > 1:
            return 0.0  # it goes into the bucket
        return added_by_buckets(scenario) if self.owns_gradients else None


MEGATRON = Engine()
# It keeps its own output in parts too.
DEEPSPEED = Engine(Zero, gathers=2, owns_gradients=True)
