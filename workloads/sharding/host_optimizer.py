"""A share of a Megatron rank's optimizer in the host's memory: fp32 weights and moments, updated there.

Rules from megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py (core 0.16): gradients go to the host in fp32,
tensor by tensor; the GPU updates its own share meanwhile; PyTorch's fused Adam updates the rest on the CPU, and what it
updated goes back in fp32 and is cast on the GPU (a copy that does not block casts there). With
overlap_cpu_optimizer_d2h_h2d every tensor has an optimizer of its own: it is updated while later gradients arrive and
earlier parameters leave, on streams of their own. Else there is one for all of them. DeepSpeed's partition
(ZeRO-Offload) goes the same way here, all of it at once, with a pass that scales gradients on the host and one that
casts parameters there; its stages 2 and 3 have sent the gradients by then (`HostSums`). Nobody measured such a step for
prestep.
"""

from __future__ import annotations

from functools import partial
from math import ceil

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.sharding.host import ADAM, FP32

TO_HOST, TO_GPU = "optimizer to host", "optimizer to gpu"
#: Bytes of a number in 16 bits.
NARROW = 2


def elements(rank: Rank, states: int) -> int:
    """Of so many parameters that a rank updates, those whose state is in the host's memory."""
    p = rank.s.parallel
    return round(p.offload_fraction * states) if p.offload != "none" else 0


class HostSums:
    """Sums of gradients in the host's memory, where DeepSpeed's stage 2 sends what each microbatch has reduced.

    As `prestep.workloads.sharding.zero` has it from the engine's source: the sum so far is fetched, added to
    and returned; behind the last microbatch it leaves for the optimizer in fp32.
    """

    def __init__(self, rank: Rank, stream: str) -> None:
        self.rank, self.stream = rank, stream
        self.host = rank.host

    def add(self, count: int, first: bool, last: bool) -> None:
        """This rank's part of so many reduced gradients, in a step's first or last microbatch or between."""
        t, host, stream, wide = self.rank.tape, self.host, self.stream, self.rank.wide
        if not (first and last):
            add = partial(pass_over, t, count, float(3 * wide * count), stream)
            host.add_up(count, stream, wide, add, first)
        if last:
            if wide < FP32:
                pass_over(t, count, float((wide + FP32) * count), stream)
            host.to_host(count, stream)

    def keep(self, states: int, several: bool) -> None:
        """Counts the sums of a rank that updates so many parameters, of several microbatches or one."""
        if several:
            self.host.keep("gradients", states, self.rank.wide)


def sums_of(rank: Rank, stream: str) -> HostSums | None:
    """Where gradients add up, if not on the GPU."""
    offloads = rank.s.parallel.offload == "optimizer"
    return HostSums(rank, stream) if offloads else None


class HostOptimizer:
    """One step of it.

    Parameters
    ----------
    rank : Rank
    count : int
        Parameters that the host updates.
    """

    def __init__(self, rank: Rank, count: int) -> None:
        self.rank, self.t, self.count = rank, rank.tape, count
        self.host = rank.host
        self.of_deepspeed = rank.s.training.framework == "deepspeed"
        overlaps = rank.o.overlap_cpu_optimizer_d2h_h2d
        self.parts = self._parts() if overlaps else [count]
        self.arrived: list[tuple[int, ...]] = []

    def _parts(self) -> list[int]:
        """Parameters of each tensor that this rank updates there; all as large as the mean (a guess)."""
        share = self.count / max(1, self.rank.parameters)
        size = max(1, ceil(self.count / max(1, round(self.rank.tensors * share))))
        return [min(size, self.count - at) for at in range(0, self.count, size)]

    def send(self) -> None:
        """Gradients are scaled, cast where they are narrower, and sent, unless each microbatch has sent them."""
        if self.rank.data.offloads:
            self.arrived = [self.t.record()]
            return
        wide = self.rank.wide
        for n in self.parts:
            if self.rank.data.clips and not self.of_deepspeed:
                pass_over(self.t, n, float(2 * wide * n))
            if wide < FP32:
                pass_over(self.t, n, float((wide + FP32) * n))
            self.host.to_host(n, TO_HOST)
            self.arrived.append(self.t.record(TO_HOST))

    def update(self) -> None:
        """The CPU updates a part as soon as its gradients are there; it goes back beside the next one."""
        for n, arrived in zip(self.parts, self.arrived, strict=True):
            self.t.synchronize(event=arrived)
            if self.of_deepspeed:
                self.host.update_partition(n, NARROW)
                self.host.to_gpu(n, TO_GPU, NARROW)
                continue
            self.host.pass_over(float(ADAM * n))
            self.host.to_gpu(n, TO_GPU, FP32)
            pass_over(self.t, n, float((FP32 + NARROW) * n), TO_GPU)
        self.t.wait(self.t.record(TO_GPU))
