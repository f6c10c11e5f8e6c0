"""DeepSpeed's ZeRO 3 around PyTorch's modules: hooks gather and free each module's parameters, gradients are scattered.

Rules from deepspeed/runtime/zero (0.19): hooks of every module, forward and backward (parameter_offload.py), what they
gather and free (`zero3_course`), all-gathers of several parameters that are copied in and out (partition_parameters.py,
AllGatherCoalescedHandle), gradients that are copied into a bucket as they come, reduce-scattered when it is full, and
copied or added into partitions; then norms in 64 bits tensor by tensor, the update of a flat fp32 partition in
groups of `GROUP` elements, and small parameters gathered one by one, for which the host waits (stage3.py). All-gathers,
their sizes and their order are those of a trace (llama1b-z3-b4, two H200, DeepSpeed 0.19.8).

With the optimizer in the host's memory parts of parameters stay on the GPU unless `offload_param` moves them, and
the sums of gradients in 16 bits (grad_partitions_flat_buffer) lie on the host whether there are several microbatches or
not: `partition_grads` copies each reduced part there and back in the first microbatch, fetches, adds and returns it in
later ones. In the last the norm is taken on the GPU and the part leaves in fp32 as well. In the step the host reads one
norm of all, then scales, updates, casts and returns each group of `GROUP` elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.course import Coordinator, with_hook
from prestep.workloads.sharding.host import HostMemory
from prestep.workloads.sharding.zero import (
    FLATTEN,
    NARROWED,
    NORM,
    SCALARS,
    SCALED,
    WIDE,
    WIDENED,
    ZeroPartitions,
)
from prestep.workloads.torch.tape import Tensor

#: Streams: of copies around all-gathers, of the all-gathers, and of all that is done to gradients.
COPIES, GATHER, REDUCE = "zero all-gather", "nccl all-gather", "zero reduce"
GROUP = (
    1_000_000_000  # elements of a partition that are updated at a time: sub_group_size
)
#: Operations without a kernel (views, events): of a module that is entered, a parameter that is copied out of what was
#: gathered, one that is freed, a projection forward and backward, a gradient, its part. Counted as Python's calls were.
ENTERED, CUT_OUT, FREED, PROJECTED, PROJECTED_BACK, CUT_IN, CUT_UP = 2, 3, 3, 3, 4, 4, 4
#: Kernels over single numbers: behind a part's norm (its square and root), and for each norm that is summed. Counted
#: in the source (`_constant_buffered_norm2`, `complete_grad_norm_calculation_for_cpu_offload`).
ROOTS, SQUARED = 2, 2


@dataclass
class Gathering:
    """An all-gather under way.

    Attributes
    ----------
    event : tuple of int
        Its end.
    buffer : Storage
        What it fills.
    parameters : list of int
        Those that are in it: one alone is its buffer, several are copied out.
    """

    event: tuple[int, ...]
    buffer: Storage
    parameters: list[int]


class ShardedParameters(ZeroPartitions):
    """Parameters of which each rank has a part, gathered by hooks of the modules; see `ZeroPartitions`.

    `follow` gives it the course of a microbatch.
    """

    buffers = 1  # it is reduced before the next gradient comes; it stays between steps
    copies: Group | None = (
        None  # ranks with the same parts of other copies of the parameters
    )
    coordinator: Coordinator

    def _resident(self) -> list[Storage]:
        """A part of the parameters; and of gradients, weights in fp32 and moments, unless the host has them."""
        narrow = float(self.t.itemsize * self.own)
        kept = [Storage(self.t.memory, narrow, "parameters")]
        if self.host is not None:
            self._keep_on_host(self.host, sums=True)
            return kept
        kept.append(Storage(self.t.memory, narrow, "gradients"))
        return kept + super()._resident()

    def follow(self, course: Sequence[Sequence[int]]) -> None:
        """Knows from now on in which order modules run, and hangs its hooks on them; parameters are parts."""
        self._set_up_buckets()
        self.numbers = {id(p): number for number, p in enumerate(self.parameters)}
        self.under_way: dict[int, Gathering] = {}
        self.whole: dict[int, Storage] = {}
        for p in self.parameters:
            p.storage = None
        self.coordinator = Coordinator(course, [p.elements for p in self.parameters])
        for number, p in enumerate(self.parameters):
            if self.coordinator.persists(number):
                self.coordinator.gathered.add(number)
                self.whole[number] = Storage(self.t.memory, p.size, "parameters")
        self.t.hooks = self

    # -- hooks of modules -------------------------------------------------------------------------
    def before_forward(self) -> None:
        super().before_forward()
        self.coordinator.begin()

    def enter(self, parameters: Sequence[Tensor]) -> None:
        self.fetch(parameters, "zero3_pre_forward")

    def take(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """A Python function between the input and the module; a projection's product is one too (linear.py)."""
        t = self.t
        self.function()
        projects = bool(parameters) and len(parameters[0].shape) == 2
        if projects:
            t.cpu("zero3_linear")
            t.cpu("zero3_operation", PROJECTED)

        def ran() -> None:
            if projects:
                t.cpu("zero3_linear_backward")
                t.cpu("zero3_operation", PROJECTED_BACK)
            self.free(parameters, "zero3_post_backward")

        return with_hook(t, x, ran)

    def leave(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        self.free(parameters, "zero3_post_forward")
        self.function()
        return with_hook(
            self.t, y, lambda: self.fetch(parameters, "zero3_pre_backward")
        )

    def function(self) -> None:
        """An autograd function written in Python, which returns its input."""
        self.t.cpu("zero3_function")
        self.t.cpu("zero3_operation")

    def _numbers(self, parameters: Sequence[Tensor]) -> list[int]:
        return sorted(self.numbers[id(p)] for p in parameters)

    def fetch(self, parameters: Sequence[Tensor], hook: str) -> None:
        """A module's parameters are gathered and awaited, and what comes next is gathered ahead."""
        t, module = self.t, self._numbers(parameters)
        t.cpu(hook)
        t.cpu("zero3_operation", ENTERED)
        self._gather_together(self.coordinator.lacking(module))
        for p in module:
            self._await(p)
        t.wait(t.record(COPIES))
        self._gather_together(self.coordinator.ahead(module))

    def free(self, parameters: Sequence[Tensor], hook: str) -> None:
        t = self.t
        t.cpu(hook)
        for p in self.coordinator.freed(self._numbers(parameters)):
            t.cpu("zero3_free")
            t.cpu("zero3_operation", FREED)
            self.whole.pop(p, None)

    # -- all-gathers --------------------------------------------------------------------------------
    def _gather_together(self, parameters: list[int]) -> None:
        """One all-gather of several parameters, whose parts are put side by side before."""
        if not parameters:
            return
        t = self.t
        t.cpu("zero3_gather")
        t.cpu("zero3_gather_param", len(parameters))
        size = sum(self.parameters[p].size for p in parameters)
        with t.on_stream(COPIES):
            buffer = Storage(t.memory, size, "buffers")
            if len(parameters) > 1:
                self._copy(size / self.group.size)
            self.group.collective(t, "all_gather", size, GATHER, in_place=True)
        under_way = Gathering(t.record(GATHER), buffer, parameters)
        self.under_way.update(dict.fromkeys(parameters, under_way))

    def _await(self, parameter: int) -> None:
        """Copies wait for the all-gather that has a parameter, and all that came with it are taken out."""
        arrived = self.under_way.get(parameter)
        if arrived is None:
            return
        t = self.t
        t.wait(arrived.event, COPIES)
        alone = len(arrived.parameters) == 1
        for p in arrived.parameters:
            del self.under_way[p]
            t.cpu("zero3_await")
            if alone:
                self.whole[p] = arrived.buffer
                continue
            size = self.parameters[p].size
            self.whole[p] = Storage(t.memory, size, "buffers")
            t.cpu("zero3_operation", CUT_OUT)
            with t.on_stream(COPIES):
                self._copy(size)

    def _copy(self, size: float) -> None:
        """A kernel that copies so many bytes, on the current stream."""
        t = self.t
        t.cpu("elementwise_nograd")
        t.launch(Kernel("aten copy", (int(size / t.itemsize),), bytes=2.0 * size))

    # -- gradients --------------------------------------------------------------------------------
    def ready(self, p: Tensor) -> None:
        """A gradient is there: a copy of it into the bucket, which is reduced first if it cannot take it."""
        t = self.t
        t.cpu("zero3_gradient")
        self.filling.make_room(p.elements)
        t.wait(t.record(), REDUCE)
        self.filling.add(p, p.elements)
        if self.filling.size <= self.bucket:
            t.cpu("zero3_operation", CUT_IN)
            with t.on_stream(REDUCE):
                self._copy(p.size)
            p.grad = None

    def _reduce(self, members: Sequence[Tensor], elements: float) -> None:
        """The bucket's gradients, ordered by the ranks that get them, are divided, scattered, and copied or added."""
        t, n = self.t, int(elements)
        size = float(n * t.itemsize)
        t.cpu("zero3_reduce")
        with t.on_stream(REDUCE):
            if len(members) > 1:
                ordered = Storage(t.memory, size, "buffers")
                self._copy(size)
                self._divide(n)
                del ordered
            else:
                self._divide(n)
            self.group.collective(t, "reduce_scatter", size, REDUCE)
            if self.copies is not None:
                part = size / self.group.size
                self.copies.collective(t, "all_reduce", part, REDUCE)
            for p in members:
                self._add_up(p)
                p.grad = None

    def _divide(self, n: int) -> None:
        self.t.cpu("elementwise_nograd")
        self.t.launch(Kernel("aten div", (n,), bytes=2.0 * self.t.itemsize * n))

    def _add_up(self, p: Tensor) -> None:
        """This rank's part of a gradient: the step's first is copied, later ones are added."""
        t = self.t
        t.cpu("zero3_reduce_param")
        t.cpu("zero3_operation", CUT_UP)
        part = -(-p.elements // self.group.size)
        if self.host is not None:
            self._send_part(self.host, part)
        elif t.microbatch == 0:
            moved = float((t.itemsize + self.sums) * part)
            t.cpu("elementwise_nograd")
            t.launch(Kernel("aten copy", (part,), bytes=moved))
        else:
            self._add(part)

    def _send_part(self, host: HostMemory, part: int) -> None:
        """A part goes to the host's sum; in the last microbatch its norm is taken, and it leaves in fp32 too."""
        t = self.t
        on_gpu = Storage(t.memory, float(self.sums * part), "buffers")
        # The first comes back at once, though what was sent is still there.
        add, first = partial(self._add, part), t.microbatch == 0
        host.add_up(part, REDUCE, self.sums, add, first, back=True)
        if t.microbatch == self.last:
            wider = Storage(t.memory, NORM * part, "buffers")
            self._over(part, WIDENED)
            self._read(part, NORM)
            self._small(ROOTS)
            del wider
            wide = Storage(t.memory, float(WIDE * part), "buffers")
            self._over(part, WIDENED)
            host.to_host(part, REDUCE, WIDE)
            del wide
        del on_gpu

    def after_backward(self) -> None:
        """The rest is reduced, and the host waits for it."""
        self.filling.close()
        self.t.wait(self.t.record(REDUCE))
        self.t.synchronize(REDUCE)

    # -- the optimizer ------------------------------------------------------------------------------
    def step(self) -> None:
        """Norms, then groups of the partition in turns, then small parameters."""
        self.t.cpu("zero3_step_param", len(self.parameters))
        for start in range(0, self.own, GROUP):
            share = min(GROUP, self.own - start) / self.own
            self._norm(round(share * len(self.parameters)))
        for start in range(0, self.own, GROUP):
            self._update(min(GROUP, self.own - start))
        self.gather_small()

    def _norm(self, count: int) -> None:
        """Of so many tensors' parts, in 64 bits, then over all ranks: a number that the host sends waits for it.

        Norms of what has gone to the host were taken there: their squares are summed and read.
        """
        t = self.t
        if self.host is not None:
            self._small(SQUARED * count)
            t.synchronize()
        else:
            for p in self.parameters[:count]:
                part = -(-p.elements // self.group.size)
                self._over(part, WIDENED)
                self._read(part, NORM)
            self._small(SCALARS)
        size = 8.0 if self.host is None else 4.0
        self.group.collective(t, "all_reduce", size, GATHER)
        t.wait(t.record(GATHER))
        t.synchronize()

    def _update(self, n: int) -> None:
        """Gradients side by side, in fp32, scaled; Adam; weights in 16 bits."""
        t = self.t
        if self.host is not None:
            # Memory that is not pinned is written in 16 bits and copied: the host waits for it.
            self._update_on(self.host, n, REDUCE)
            t.synchronize(REDUCE)
            return
        t.cpu("zero3_operation", len(self.parameters))
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (n,), bytes=FLATTEN * n))
        wide = Storage(t.memory, 4.0 * n, "gradients")
        self._over(n, WIDENED)
        self._over(n, SCALED)
        self._adam(n)
        del wide
        self._over(n, NARROWED)

    def gather_small(self) -> None:
        """Parameters that stay gathered come one by one; the host waits for them."""
        t = self.t
        small = [
            p for n, p in enumerate(self.parameters) if self.coordinator.persists(n)
        ]
        for p in small:
            t.cpu("zero3_small")
            self.group.collective(t, "all_gather", p.size, GATHER)
        t.wait(t.record(GATHER))
        for p in small:
            self._copy(p.size)
        t.synchronize()
