"""Parameters, gradients and optimizer in the host's memory, as FSDP2's CPUOffloadPolicy keeps them.

Rules from torch/distributed/fsdp/_fully_shard: a shard is copied to the GPU each time before it is gathered
(_fsdp_param.py, all_gather_inputs), in the type in which it is stored; a reduced gradient is copied back behind its
reduction; the host waits for the last of these copies when backward is done, and updates its shards itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prestep.sim.graph.opgraph import NORM_ON_HOST, TO_GPU, TO_HOST, UPDATE_ON_HOST
from prestep.workloads.optimizer import Optimizer
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

#: Stream on which the host's own work stands in the timeline.
ON_HOST = "host optimizer"
#: Bytes that Adam's loop over tensors moves in the host's memory for an element of 4 bytes, over those of the fused
#: kernel: ten passes, and temporaries that the host's allocator hands out anew. Fitted on an H100's host: 155 bytes
#: with 16 threads, 227 with one, for 28 (lab/cases/offload).
LOOP = 190.0 / 28.0
FP32 = 4
ADAM = 28  # bytes of an element in fp32: three numbers of a parameter's size and four of a moment's


@dataclass(frozen=True)
class HostMemory:
    """What a rank has in its host's memory instead of its GPU's.

    Attributes
    ----------
    tape : Tape
    alone : Group
        The rank itself, with the ranks that it stands for.
    wide : int
        Bytes of a stored parameter and of its gradient.
    pinned : bool
        Whether it is pinned: the host waits for copies of memory that is not.
    """

    tape: Tape
    alone: Group
    wide: int
    pinned: bool = True

    def keep(self, owner: str, elements: float, wide: float | None = None) -> None:
        """Counts numbers of `wide` bytes that stay there."""
        self.tape.memory.keep_on_host(owner, elements * (wide or self.wide))

    def to_gpu(self, elements: float, stream: str, wide: int | None = None) -> None:
        """Copies stored parameters to the GPU; `wide`: numbers of so many bytes."""
        self._copy(TO_GPU, elements * (wide or self.wide), stream)

    def to_host(self, elements: float, stream: str, wide: int | None = None) -> None:
        """Copies gradients to the host behind what the stream does."""
        self._copy(TO_HOST, elements * (wide or self.wide), stream)

    def add_up(
        self,
        elements: float,
        stream: str,
        wide: int,
        add: Callable[[], None],
        first: bool,
        back: bool = False,
    ) -> None:
        """Fetches a sum, adds to it and returns it; the step's first is sent alone, and with ``back`` fetched again."""
        if not first:
            self.to_gpu(elements, stream, wide)
            add()
        self.to_host(elements, stream, wide)
        if first and back:
            self.to_gpu(elements, stream, wide)

    def _copy(self, way: str, size: float, stream: str) -> None:
        self.alone.collective(self.tape, way, size, stream, "launch", copied=True)
        if not self.pinned:
            self.tape.synchronize(stream)

    def pass_over(self, size: float) -> None:
        """Work of the CPU's threads on so many bytes of memory, read and written."""
        self._work(UPDATE_ON_HOST, size)

    def clip(self, tensors: Sequence[Tensor]) -> None:
        """The norm of the gradients, which one thread reads, then the gradients scaled by it."""
        size = float(self.wide * sum(p.elements for p in tensors))
        self._work(NORM_ON_HOST, size)
        self._work(UPDATE_ON_HOST, 2 * size)

    def update(
        self, tensors: Sequence[Tensor], rule: Optimizer, moment: int, fused: bool
    ) -> None:
        """Updates parameters on the CPU: all are read and written, with their moments, and gradients are read."""
        elements = sum(p.elements for p in tensors)
        moved = 3.0 * self.wide + 2.0 * rule.moments * moment
        self._work(UPDATE_ON_HOST, elements * moved * (1.0 if fused else LOOP))

    def update_partition(self, elements: int, narrow: int) -> None:
        """DeepSpeed's step on so many elements: gradients scaled, Adam, and parameters cast to `narrow` bytes."""
        for moved in (2 * FP32, ADAM, FP32 + narrow):
            self.pass_over(float(moved * elements))

    def _work(self, what: str, size: float) -> None:
        """Work of the CPU for which the host waits."""
        if size:
            self.alone.collective(self.tape, what, size, ON_HOST, "launch", copied=True)
            self.tape.synchronize(ON_HOST)
