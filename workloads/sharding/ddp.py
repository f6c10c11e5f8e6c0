"""DistributedDataParallel: gradients are averaged bucket by bucket while backward goes on.

Rules from torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp. After the first
iteration buckets hold parameters in the order their gradients become ready, so assigning each gradient
to the open bucket as it arrives, and closing the bucket at its cap, gives the rebuilt buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import storages
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.buckets import BucketPolicy, Filling, cut
from prestep.workloads.torch.functional import launch_elementwise
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.job.parallel import Parallel

STREAM, EXPERTS = "nccl dp", "nccl edp"
# Seconds between two looks of NCCL's watchdog thread (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
# kWatchdogThreadSleepMillis). Until it looks, it keeps the buffers of collectives that have ended.
WATCHDOG_PERIOD = 0.1


class DistributedDataParallel:
    """Hooks on parameters that fill buckets and reduce them.

    Parameters
    ----------
    policy : BucketPolicy
        Bytes at which buckets close.
    view : bool
        ``gradient_as_bucket_view``: gradients live in the buckets.
    stream : str
        Of the group's communicator.
    beside : DistributedDataParallel, optional
        Another around the same module, for parameters that other ranks share (experts); it does what this one does.
    """

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        policy: BucketPolicy,
        view: bool,
        stream: str = STREAM,
        beside: DistributedDataParallel | None = None,
    ) -> None:
        self.stream, self.beside = stream, beside
        self.t, self.group, self.view = t, group, view
        self.filling, self.cap = Filling[Tensor](policy, self._reduce), policy.size
        self.sync = True
        self.parameters = parameters
        owner = "gradients" if view else "buffers"
        # Gradients become ready from the last parameter on.
        coming = ((p, p.stored_size) for p in reversed(parameters))
        sizes = [size for _, size in cut(policy, coming) if size]
        self.buckets = storages(t.memory, sizes, owner)
        t.memory.rebuilt += [bucket.block for bucket in self.buckets]
        for p in parameters:
            p.on_grad = self._ready

    @property
    def sync(self) -> bool:
        """Whether the next backward pass reduces."""
        return self._sync

    @sync.setter
    def sync(self, reduces: bool) -> None:
        self._sync = reduces
        if self.beside is not None:
            self.beside.sync = reduces

    def before_forward(self) -> None:
        self.t.cpu("ddp_forward")
        if self.beside is not None:
            self.beside.before_forward()

    def _ready(self, p: Tensor) -> None:
        """The gradient of a parameter is complete: average it into its bucket; reduce a full bucket."""
        if not self.sync:
            return
        t = self.t
        t.cpu("ddp_hook")
        launch_elementwise(t, "aten mul", p.elements, 2 * p.stored_size)
        if self.view:
            p.grad = Tensor(None, p.shape, p.stored)  # its memory is the bucket's
        self.filling.add(p, p.stored_size)

    def _reduce(self, members: Sequence[Tensor], size: float) -> None:
        self.group.collective(self.t, "all_reduce", size, self.stream)

    def after_backward(self) -> None:
        """Reduces the last bucket; the compute stream waits for all of them."""
        if self.beside is not None:
            self.beside.after_backward()
        if not self.sync:
            return
        self.filling.close()
        self.filling.closed = 0
        self.t.cpu("ddp_finalize")
        self.t.wait(self.t.record(self.stream))
        if not self.view:
            for p in self.parameters:
                launch_elementwise(self.t, "aten copy", p.elements, 2 * p.stored_size)


def wrap(
    t: Tape,
    parallel: Parallel,
    shared: list[Tensor],
    group: Group,
    experts: Sequence[Tensor] = (),
    copies: Group | None = None,
) -> DistributedDataParallel:
    """DDP over what all replicas share; experts spread over them have one of their own, over those with the same."""
    first, cap = parallel.bucket_caps
    policy, view, beside = (
        BucketPolicy(cap, first),
        parallel.gradient_as_bucket_view,
        None,
    )
    if experts and copies is not None and copies.size > 1:
        own = list(experts)
        beside = DistributedDataParallel(t, own, copies, policy, view, EXPERTS)
    return DistributedDataParallel(t, shared, group, policy, view, STREAM, beside)


def first_buckets_held(warmup: int, step_time: float) -> bool:
    """Whether the buckets of the first step still count after `warmup` steps, on a typical rank.

    The second step makes new ones, in the order in which gradients became ready; the watchdog holds the old ones
    until its next look, which is half a period away on average.
    """
    return (warmup - 1) * step_time < WATCHDOG_PERIOD / 2


def reduce_each(
    t: Tape, parameters: list[Tensor], group: Group, average: bool, stream: str = STREAM
) -> None:
    """One blocking all-reduce per parameter after backward (``ddp-no-overlap``)."""
    t.cpu("ranks_meet")
    for p in parameters:
        size = p.stored_size
        group.collective(t, "all_reduce", size, stream, host="blocking_collective")
        t.wait(t.record(stream))
        if average:
            t.cpu("elementwise_nograd")
            t.launch(Kernel("aten div", (p.elements,), bytes=2 * size))
