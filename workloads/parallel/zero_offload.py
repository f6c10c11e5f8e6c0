"""ZeRO-Offload: DeepSpeed's partition of the optimizer in the host's memory, updated there (offload_optimizer).

Rules from deepspeed/runtime/zero/stage_1_and_2.py (0.19, copy_grads_in_partition and step): behind a bucket's
reduction, on its stream, a rank takes the norm of each tensor of its partition, looks for infinities in it, which the
host reads, casts it to fp32 and copies it to the host (async_inplace_copy_grad_to_fp32_buffer_from_gpu). With several
microbatches gradients of 16 bits add up in between: the sum so far comes to the GPU and goes back
(async_accumulate_grad_in_cpu_via_gpu). In the step the host reads all norms, scales gradients, runs Adam, casts
parameters to 16 bits and copies them to the GPU, which gathers them. Nobody measured such a step for prestep: the
CPU's rates are those of PyTorch's fused Adam, which moves the same bytes as DeepSpeedCPUAdam (a guess).

With stage 3 (stage3.py, 0.19.6) parts of parameters stay on the GPU where `offload_param` does not move them, and the
sums of gradients in 16 bits (grad_partitions_flat_buffer) lie on the host whether there are several microbatches or
not: `partition_grads` copies each reduced part there and back in the first microbatch, fetches, adds and returns it in
later ones. In the last the norm is taken on the GPU and the part leaves in fp32 as well. In the step the host reads one
norm of all, then scales, updates, casts and returns each group of `GROUP` elements.
"""

from __future__ import annotations

from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.ddp import STREAM
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.offload import HostMemory
from prestep.workloads.parallel.zero3 import (
    CUT_UP,
    GATHER,
    GROUP,
    REDUCE,
    ShardedParameters,
)
from prestep.workloads.parallel.zero_partitions import (
    ADAM,
    LOOKS,
    NORM,
    WIDE,
    WIDENED,
    ZeroPartitions,
)
from prestep.workloads.torch.tape import Tape, Tensor

#: Kernels over single numbers: behind a part's norm (its square and root), and for each norm that is summed. Counted
#: in the source (`_constant_buffered_norm2`, `complete_grad_norm_calculation_for_cpu_offload`).
ROOTS, SQUARED = 2, 2


class OffloadedPartitions(ZeroPartitions):
    """Gradients that go to the host bucket by bucket, and an optimizer that runs there.

    Parameters
    ----------
    host : HostMemory
        Where the partition is.
    last : int
        The step's last microbatch, whose gradients the optimizer takes.
    """

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        stage: int,
        host: HostMemory,
        last: int,
    ) -> None:
        super().__init__(t, parameters, group, stage)
        self.host, self.last = host, last
        host.keep("optimizer", 3 * self.own, WIDE)  # weights and both moments
        host.keep("gradients", self.own, WIDE)
        if last > 0:  # sums over microbatches (accumulated_grads_in_cpu)
            host.keep("gradients", self.own, t.itemsize)

    def _resident(self) -> Storage:
        """A buffer for the largest gradient on its way (temp_grad_buffer_for_gpu_offload)."""
        largest = max(p.elements for p in self.parameters)
        return Storage(self.t.memory, float(self.t.itemsize * largest), "buffers")

    def _keep(self, part: int, tensors: int) -> None:
        """This rank's part of a bucket goes to the host, tensor by tensor."""
        with self.t.on_stream(STREAM):
            self._add_up(part)
            if self.t.microbatch == self.last:
                self._look(part, max(1, tensors // self.group.size))
                self._over(part, WIDENED)
                self.host.to_host(part, STREAM, WIDE)

    def _add_up(self, part: int) -> None:
        """The sum over microbatches is fetched, added to, and goes back."""
        if self.last > 0:
            t, first = self.t, self.t.microbatch == 0
            add = partial(_add, t, part)
            self.host.add_up(part, STREAM, t.itemsize, add, first)

    def _look(self, part: int, tensors: int) -> None:
        """Norm and infinities of every tensor, which the host awaits."""
        t, n = self.t, part // tensors
        for _ in range(tensors):
            self._over(n, WIDENED)
            for size in (NORM, float(t.itemsize)):
                t.cpu("elementwise_nograd")
                t.launch(Kernel("fused_reduction", (n,), bytes=size * n))
            self._small(1 + LOOKS)
            t.synchronize(STREAM)

    def step(self) -> None:
        """Norms read one by one, gradients scaled, Adam and the cast by the CPU, parameters back to the GPU."""
        t, n, host = self.t, self.own, self.host
        t.synchronize(STREAM)
        self._agree(1.0)
        for _ in self.tensors:
            t.cpu("elementwise_nograd")
            t.synchronize()
        self._agree(4.0)
        host.pass_over(2.0 * WIDE * n)
        t.cpu("optimizer_step")
        host.pass_over(float(ADAM * n))
        host.pass_over(float((WIDE + t.itemsize) * n))
        host.to_gpu(n, STREAM, t.itemsize)
        t.wait(t.record(STREAM))
        self._gather()


class OffloadedShards(ShardedParameters):
    """Stage 3 whose parts of parameters are on the GPU, and all that the optimizer has on the host.

    Parameters
    ----------
    host : HostMemory
        Where gradients and states are.
    last : int
        The step's last microbatch, whose gradients the optimizer takes.
    """

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        host: HostMemory,
        last: int,
    ) -> None:
        super().__init__(t, parameters, group)
        self.host, self.last = host, last
        host.keep("optimizer", 3 * self.own, WIDE)  # weights and both moments
        host.keep("gradients", self.own, WIDE)  # what Adam reads
        host.keep("gradients", self.own, t.itemsize)  # sums, whatever they add up

    def _resident(self) -> Storage:
        """A rank's part of the parameters, and nothing else."""
        narrow = float(self.t.itemsize * self.own)
        return Storage(self.t.memory, narrow, "parameters")

    def _add_up(self, p: Tensor) -> None:
        """This rank's part of a gradient goes to the host's sum; in the last microbatch it leaves in fp32 too."""
        t, narrow = self.t, self.t.itemsize
        t.cpu("zero3_reduce_param")
        t.cpu("zero3_operation", CUT_UP)
        part = -(-p.elements // self.group.size)
        on_gpu = Storage(t.memory, float(narrow * part), "buffers")
        # The first comes back at once, though what was sent is still there.
        add, first = partial(_add, t, part), t.microbatch == 0
        self.host.add_up(part, REDUCE, narrow, add, first, back=True)
        if t.microbatch == self.last:
            self._leave(part)
        del on_gpu

    def _leave(self, part: int) -> None:
        """The norm of a part, in 64 bits, then the part in fp32 on its way to the optimizer."""
        t = self.t
        wider = Storage(t.memory, NORM * part, "buffers")
        self._over(part, WIDENED)
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused_reduction", (part,), bytes=NORM * part))
        self._small(ROOTS)
        del wider
        wide = Storage(t.memory, float(WIDE * part), "buffers")
        self._over(part, WIDENED)
        self.host.to_host(part, REDUCE, WIDE)
        del wide

    def step(self) -> None:
        """One norm, then groups of the partition in turns on the CPU, then small parameters."""
        t, host = self.t, self.host
        t.cpu("zero3_step_param", len(self.parameters))
        for start in range(0, self.own, GROUP):
            self._read_norm(min(GROUP, self.own - start) / self.own)
        for start in range(0, self.own, GROUP):
            n = min(GROUP, self.own - start)
            host.pass_over(2.0 * WIDE * n)  # scaled
            t.cpu("optimizer_step")
            host.pass_over(float(ADAM * n))
            # Memory that is not pinned is written in 16 bits and copied: the host waits for it.
            host.pass_over(float((WIDE + t.itemsize) * n))
            host.to_gpu(n, REDUCE, t.itemsize)
            t.synchronize(REDUCE)
        self._gather_small()

    def _read_norm(self, share: float) -> None:
        """Squares of a group's norms are summed on the GPU, read, and summed over all ranks."""
        t = self.t
        self._small(SQUARED * round(share * len(self.parameters)))
        t.synchronize()
        self.group.collective(t, "all_reduce", 4.0, GATHER)
        t.wait(t.record(GATHER))
        t.synchronize()


def _add(t: Tape, n: int) -> None:
    """One tensor of so many elements added to another."""
    t.cpu("elementwise_nograd")
    t.launch(Kernel("add", (n,), bytes=3.0 * t.itemsize * n))
