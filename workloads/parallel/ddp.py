"""DistributedDataParallel: gradients are averaged bucket by bucket while backward goes on.

Rules from torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp. After the first
iteration buckets hold parameters in the order their gradients become ready, so assigning each gradient
to the open bucket as it arrives, and closing the bucket at its cap, gives the rebuilt buckets.
"""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.parallel.group import Group
from workloads.torch.functional import launch_elementwise
from workloads.torch.memory import Storage
from workloads.torch.tape import Tape, Tensor

STREAM = "nccl dp"
# Seconds between two looks of NCCL's watchdog thread (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
# kWatchdogThreadSleepMillis). Until it looks, it keeps the buffers of collectives that have ended.
WATCHDOG_PERIOD = 0.1


class DistributedDataParallel:
    """Hooks on parameters that fill buckets and reduce them.

    Parameters
    ----------
    bucket_cap, first_bucket : float
        Bytes at which a bucket closes (PyTorch: a bucket may exceed it by its last gradient).
    view : bool
        ``gradient_as_bucket_view``: gradients live in the buckets.
    """

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        bucket_cap: float,
        first_bucket: float,
        view: bool,
    ) -> None:
        self.t, self.group, self.cap, self.first, self.view = (
            t,
            group,
            bucket_cap,
            first_bucket,
            view,
        )
        self.open = 0.0
        self.closed = 0
        self.pending = 0
        self.members: list[Tensor] = []
        self.sync = True
        self.parameters = parameters
        self.flat = Storage(t.memory, sum(p.size for p in parameters), "buffers")
        t.memory.first_buckets = self.flat.size
        for p in parameters:
            p.on_grad = self._ready

    def before_forward(self) -> None:
        self.t.cpu("ddp_forward")

    def _ready(self, p: Tensor) -> None:
        """The gradient of a parameter is complete: average it into its bucket; reduce a full bucket."""
        if not self.sync:
            return
        t = self.t
        t.cpu("ddp_hook")
        launch_elementwise(t, "div", p.elements, 2 * p.size)
        if self.view:
            p.grad = Tensor(None, p.shape, p.itemsize)  # its memory is the bucket's
        self.open += p.size
        self.members.append(p)
        self.pending += 1
        if self.open >= (self.first if self.closed == 0 else self.cap):
            self._reduce()

    def _reduce(self) -> None:
        self.group.collective(self.t, "all_reduce", self.open, STREAM)
        self.open, self.members = 0.0, []
        self.closed += 1

    def after_backward(self) -> None:
        """Reduces the last bucket; the compute stream waits for all of them."""
        if not self.sync:
            return
        if self.open > 0:
            self._reduce()
        self.t.cpu("ddp_finalize")
        self.t.wait(self.t.record(STREAM))
        self.closed = 0
        if not self.view:
            for p in self.parameters:
                launch_elementwise(self.t, "copy", p.elements, 2 * p.size)


def first_buckets_held(warmup: int, step_time: float) -> bool:
    """Whether the buckets of the first step still count after `warmup` steps, on a typical rank.

    The second step makes new ones, in the order in which gradients became ready; the watchdog holds the old ones
    until its next look, which is half a period away on average.
    """
    return (warmup - 1) * step_time < WATCHDOG_PERIOD / 2


def reduce_each(t: Tape, parameters: list[Tensor], group: Group, average: bool) -> None:
    """One blocking all-reduce per parameter after backward (``ddp-no-overlap``)."""
    t.cpu("ranks_meet")
    for p in parameters:
        group.collective(t, "all_reduce", p.size, STREAM, host="blocking_collective")
        t.wait(t.record(STREAM))
        if average:
            t.cpu("elementwise_nograd")
            t.launch(Kernel("div", (p.elements,), bytes=2 * p.size))
