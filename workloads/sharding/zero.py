"""DeepSpeed's ZeRO 1 and 2 around PyTorch's modules: buckets filled by hooks, an optimizer of a flat partition.

Rules from deepspeed/runtime/zero/stage_1_and_2.py (0.19): a gradient is copied into a bucket (contiguous_gradients),
unless it is larger than one. A bucket that cannot take the next gradient is divided and all-reduced beside backward
(overlap_comm, allreduce_bucket), and each rank keeps its part. The optimizer looks for infinities and takes norms in
64 bits tensor by tensor, flattens its gradients, casts and scales them, updates a flat fp32 partition, copies it into
16 bits, and gathers all partitions. It reads results from the GPU in between, so the host's lead is lost.

With the optimizer in the host's memory (ZeRO-Offload; copy_grads_in_partition and step): behind a bucket's reduction,
on its stream, a rank takes the norm of each tensor of its partition, looks for infinities in it, which the host reads,
casts it to fp32 and copies it to the host (async_inplace_copy_grad_to_fp32_buffer_from_gpu). With several microbatches
gradients of 16 bits add up in between: the sum so far comes to the GPU and goes back
(async_accumulate_grad_in_cpu_via_gpu). In the step the host reads all norms, scales gradients, runs Adam, casts
parameters to 16 bits and copies them to the GPU, which gathers them. Nobody measured such a step for prestep: the
CPU's rates are those of PyTorch's fused Adam, which moves the same bytes as DeepSpeedCPUAdam (a guess).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.host_costs import buckets
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.buckets import BucketPolicy, Filling
from prestep.workloads.sharding.ddp import STREAM
from prestep.workloads.sharding.host import ADAM, HostMemory
from prestep.workloads.torch.functional import launch_elementwise
from prestep.workloads.torch.tape import Tape, Tensor

BUCKETS = buckets("deepspeed")
#: Small kernels, counted in a trace of DeepSpeed 0.19.8 (llama1b-z1-b2, two H200): of a tensor that is looked at for
#: infinities (`_has_inf_or_nan`: sums, absolute values, comparisons) beside the one that reads it, and of scalars
#: around the norm and the scale, each time that the host reads one.
LOOKS, SCALARS, READS = 8, 16, 3
FLATTEN = 4.0  # bytes for an element of a partition: gradients side by side
NORM = 8.0  # for one whose norm is taken, in 64 bits
#: An operation over elements: its name, its layout, the type that it computes in, bytes of an element.
Operation = tuple[str, str, str, int]
WIDENED: Operation = ("copy", "", "bf16>fp32", 6)
NARROWED: Operation = ("copy", "", "fp32>bf16", 6)
#: Gradients scaled, in place.
SCALED: Operation = ("mul", "", "fp32", 8)
WIDE = 4  # bytes of a number of the partition


class ZeroPartitions:
    """Gradients of a rank's parameters reduced bucket by bucket, and the optimizer of its partition.

    Parameters
    ----------
    t : Tape
    parameters : list of Tensor
        All that are trained.
    group : Group
        Ranks that share them.
    stage : int
        1: reduced after the last microbatch; 2: in each; 3: parameters are sharded too (`ShardedParameters`).
    host : HostMemory, optional
        Where the optimizer's partition is, and gradients go bucket by bucket; None: on the GPU.
    last : int
        The step's last microbatch, whose gradients an optimizer on the host takes.
    bucket, sums : int
        Elements of a bucket, and bytes of a number of summed gradients; 0: the engine's, and as in a gradient.
    """

    view = True  # gradients lie in the buckets
    buffers = 2  # one bucket is filled while another is reduced

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        stage: int,
        host: HostMemory | None = None,
        last: int = 0,
        bucket: int = 0,
        sums: int = 0,
    ) -> None:
        self.host, self.last = host, last
        self.t, self.parameters, self.group, self.stage = t, parameters, group, stage
        self.bucket, self.sync = bucket or BUCKETS["reduce"], True
        self.sums = sums or t.itemsize
        policy = BucketPolicy(self.bucket, fits=True)
        self.filling = Filling[Tensor](policy, self._reduce)
        self.cap = float(self.bucket * t.itemsize)
        self.total = sum(p.elements for p in parameters)
        self.flat: list[Storage] = []  # buckets, during a backward pass
        self.states = self._resident()
        self.partition: Storage | None = None  # gradients of its partition
        for p in parameters:
            p.on_grad = self.ready

    def _resident(self) -> list[Storage]:
        """Weights in fp32 and both moments of this rank's partition; with a host, room for the largest gradient.

        That is temp_grad_buffer_for_gpu_offload. The host keeps sums over microbatches too (accumulated_grads_in_cpu).
        """
        if self.host is None:
            return [Storage(self.t.memory, float(3 * WIDE * self.own), "optimizer")]
        self._keep_on_host(self.host, sums=self.last > 0)
        largest = max(p.elements for p in self.parameters)
        return [Storage(self.t.memory, float(self.t.itemsize * largest), "buffers")]

    def _keep_on_host(self, host: HostMemory, sums: bool) -> None:
        """Counts weights in fp32 and both moments, what Adam reads, and sums in 16 bits."""
        host.keep("optimizer", 3 * self.own, WIDE)
        host.keep("gradients", self.own, WIDE)
        if sums:
            host.keep("gradients", self.own, self.t.itemsize)

    @property
    def own(self) -> int:
        """Elements of this rank's partition."""
        return -(-self.total // self.group.size)

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Those that stand for its partition: as many as there are ranks to share them."""
        return self.parameters[:: self.group.size]

    def follow(self, course: Sequence[Sequence[int]]) -> None:
        """Hangs hooks on modules that run in this order, where parameters are sharded."""

    # -- gradients --------------------------------------------------------------------------------
    def before_forward(self) -> None:
        self.t.cpu("ddp_forward")

    def ready(self, p: Tensor) -> None:
        """A gradient is there: into the bucket, which is reduced first if it cannot take it."""
        if not self.sync and self.stage == 1:
            return
        t = self.t
        t.cpu("zero_param")
        self._set_up_buckets()
        self.filling.make_room(p.elements)
        if p.elements <= self.bucket:
            launch_elementwise(t, "aten copy", p.elements, 2.0 * p.size)
            p.grad = None  # what is left of it is in the bucket
        self.filling.add(p, p.elements)

    def _set_up_buckets(self) -> None:
        """The first gradient of a backward pass finds whole buckets (setup_buckets)."""
        if not self.flat:
            memory, size = self.t.memory, float(self.bucket * self.t.itemsize)
            self.flat = [Storage(memory, size, "buffers") for _ in range(self.buffers)]

    def _reduce(self, members: Sequence[Tensor], elements: float) -> None:
        """The bucket is divided and all-reduced on a stream of its own; this rank's part is copied out of it."""
        t, n = self.t, int(elements)
        size = float(n * t.itemsize)
        t.wait(t.record(), STREAM)
        t.cpu("zero_bucket")
        t.launch(Kernel("aten div", (n,), bytes=2.0 * size), STREAM)
        if self.group.size > 1:
            self.group.collective(t, "all_reduce", size, STREAM, in_place=True)
        for p in members:
            p.grad = None
        self._keep(n // self.group.size, len(members))

    def _keep(self, part: int, tensors: int) -> None:
        """This rank's part of a bucket of so many tensors is copied out of it (grads_in_partition).

        In stage 2 later microbatches have a partition of their own, which is added to the first.
        """
        if self.host is not None:
            self._send(self.host, part, max(1, tensors // self.group.size))
            return
        if self.partition is None:
            self.partition = Storage(
                self.t.memory, float(self.t.itemsize * self.own), "gradients"
            )
        size = 2.0 * self.t.itemsize * part
        self.t.launch(Kernel("aten copy", (part,), bytes=size), STREAM)

    def _send(self, host: HostMemory, part: int, tensors: int) -> None:
        """This rank's part of so many tensors goes to the host, whose sum over microbatches is fetched and added to."""
        t = self.t
        with t.on_stream(STREAM):
            if self.last > 0:
                add = partial(self._add, part)
                host.add_up(part, STREAM, t.itemsize, add, t.microbatch == 0)
            if t.microbatch < self.last:
                return
            # Norm and infinities of every tensor, which the host awaits.
            for _ in range(tensors):
                self._over(part // tensors, WIDENED)
                self._read(part // tensors, NORM)
                self._read(part // tensors, float(t.itemsize))
                self._small(1 + LOOKS)
                t.synchronize(STREAM)
            self._over(part, WIDENED)
            host.to_host(part, STREAM, WIDE)

    def _add(self, n: int) -> None:
        """Gradients of so many elements added to their sum."""
        moved = float((self.t.itemsize + 2 * self.sums) * n)
        self.t.cpu("elementwise_nograd")
        self.t.launch(Kernel("aten add", (n,), bytes=moved))

    def _read(self, n: int, size: float) -> None:
        """A reduction to a number of so many elements of `size` bytes."""
        self.t.cpu("elementwise_nograd")
        self.t.launch(Kernel("fused_reduction", (n,), bytes=size * n))

    def after_backward(self) -> None:
        """The rest is reduced, and the host waits for all of it."""
        if not self.sync and self.stage == 1:
            return
        self.filling.close()
        self.t.cpu("zero_bucket")
        self.t.wait(self.t.record(STREAM))
        self.t.synchronize()
        self.flat = []  # _release_ipg_buffers

    # -- the optimizer ------------------------------------------------------------------------------
    def step(self) -> None:
        """Everything that the optimizer does with its partition."""
        if self.host is not None:
            self._step_on(self.host)
            return
        self._look_for_infinities()
        self._norms()
        t, n = self.t, self.own
        for _ in range(READS):
            self._small(SCALARS)
            t.synchronize()
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (n,), bytes=FLATTEN * n))
        flat = Storage(t.memory, float(t.itemsize * n), "gradients")
        self._over(n, WIDENED)
        wide = Storage(t.memory, float(WIDE * n), "gradients")
        del flat
        self.partition = None
        self._over(n, SCALED)
        self._adam(n)
        del wide
        self._over(n, NARROWED)
        self._gather()

    def _step_on(self, host: HostMemory) -> None:
        """Norms read one by one, gradients scaled, Adam and the cast by the CPU, parameters back to the GPU."""
        t = self.t
        t.synchronize(STREAM)
        self._agree(1.0)
        for _ in self.tensors:
            t.cpu("elementwise_nograd")
            t.synchronize()
        self._agree(4.0)
        self._update_on(host, self.own, STREAM)
        t.wait(t.record(STREAM))
        self._gather()

    def _update_on(self, host: HostMemory, n: int, stream: str) -> None:
        """So many elements scaled, updated and cast by the CPU, and on their way to the GPU."""
        narrow = self.t.itemsize
        self.t.cpu("optimizer_step")
        host.update_partition(n, narrow)
        host.to_gpu(n, stream, narrow)

    def _adam(self, n: int) -> None:
        """PyTorch's fused kernel over so many elements in fp32."""
        self.t.cpu("optimizer_step")
        size = float(ADAM * n)
        self.t.launch(Kernel("aten _fused_adamw_", (1, n), layout="4", bytes=size))

    def _over(self, n: int, operation: Operation) -> None:
        """One of ATen's operations, whose times were measured, over so many elements."""
        name, layout, dtype, size = operation
        self.t.cpu("elementwise_nograd")
        self.t.launch(Kernel(f"aten {name}", (n,), dtype, layout, float(size * n)))

    def _look_for_infinities(self) -> None:
        """Of every tensor, one kernel over it and some over a number; then the host reads what all ranks found."""
        for p in self.tensors:
            self._small(LOOKS)
            self._read(p.elements, p.size / p.elements)
        self._agree(1.0)

    def _norms(self) -> None:
        """Of every tensor: to 64 bits, as fast as to 32 (elements bound that copy, not bytes), and read there."""
        for p in self.tensors:
            self._over(p.elements, WIDENED)
            self._read(p.elements, NORM)
            self._small(1)
        self._agree(4.0)

    def _agree(self, size: float) -> None:
        """A number over all ranks, which the host reads."""
        if self.group.size > 1:
            self.group.collective(self.t, "all_reduce", size, STREAM)
        self.t.wait(self.t.record(STREAM))
        self.t.synchronize()

    def _small(self, count: int) -> None:
        """So many kernels over single numbers."""
        for _ in range(count):
            self.t.cpu("elementwise_nograd")
            self.t.launch(Kernel("aten add", (1,), bytes=8.0))

    def _gather(self) -> None:
        """Updated parameters in buckets; the next step waits for them."""
        left = self.total if self.group.size > 1 else 0
        while left > 0:
            n = min(left, BUCKETS["allgather"])
            left -= n
            self.t.cpu("zero_bucket")
            size = float(n * self.t.itemsize)
            self.group.collective(self.t, "all_gather", size, STREAM, in_place=True)
        self.t.wait(self.t.record(STREAM))
