"""ZeRO-Offload: DeepSpeed's partition of the optimizer in the host's memory, updated there (offload_optimizer).

Rules from deepspeed/runtime/zero/stage_1_and_2.py (0.19, copy_grads_in_partition and step): behind a bucket's
reduction, on its stream, a rank takes the norm of each tensor of its partition, looks for infinities in it, which the
host reads, casts it to fp32 and copies it to the host (async_inplace_copy_grad_to_fp32_buffer_from_gpu). With several
microbatches gradients of 16 bits add up in between: the sum so far comes to the GPU and goes back
(async_accumulate_grad_in_cpu_via_gpu). In the step the host reads all norms, scales gradients, runs Adam, casts
parameters to 16 bits and copies them to the GPU, which gathers them. Nobody measured such a step for prestep: the
CPU's rates are those of PyTorch's fused Adam, which moves the same bytes as DeepSpeedCPUAdam (a guess).
"""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.parallel.ddp import STREAM
from workloads.parallel.group import Group
from workloads.parallel.offload import HostMemory
from workloads.parallel.zero_partitions import (
    ADAM,
    LOOKS,
    NORM,
    WIDE,
    ZeroPartitions,
)
from workloads.torch.memory import Storage
from workloads.torch.tape import Tape, Tensor
from workloads.torch.written_out import WIDENED


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
        t, wide = self.t, self.t.itemsize
        if t.microbatch > 0:
            self.host.to_gpu(part, STREAM, wide)
            t.cpu("elementwise_nograd")
            t.launch(Kernel("add", (part,), bytes=3.0 * wide * part))
        if self.last > 0:
            self.host.to_host(part, STREAM, wide)

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
