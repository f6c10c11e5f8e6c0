"""FSDP1 (``FullyShardedDataParallel``): one flat parameter per module, gathered in place, reduced in every microbatch.

Rules from torch/distributed/fsdp/_runtime_utils.py and flat_param.py of PyTorch 1.13 and 2.0: shards are cast to the
type of the computation before they are gathered; views of the gathered flat parameter are used as they are, so nothing
is copied out; autograd concatenates the gradients of the views; gathers and reductions share one communicator; the host
waits for the module before the last to be freed before it issues a gather (the rate limiter).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.fsdp import ALL_REDUCE, Context, FullyShard
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.job.pytorch import PyTorch

STREAM, UNSHARD = "nccl fsdp", "fsdp unshard"
IN_FLIGHT = 2  # gathers that the rate limiter allows (_FreeEventQueue, max_num_inflight_all_gathers)


class FlatContext(Context):
    """What all flat parameters of one model share.

    Attributes
    ----------
    freed : list of tuple of int
        Ends of the computation that used those freed lately.
    reshards : bool
        Whether the strategy frees parameters after forward (FULL_SHARD). The root stays until its backward pass all the
        same (_post_forward_reshard).
    """

    def __init__(self, reshards: bool) -> None:
        super().__init__()
        self.freed: list[tuple[int, ...]] = []
        self.reshards = reshards


class FlatShard(FullyShard):
    """The parameters of one module as one flat parameter, sharded over a group."""

    streams = (UNSHARD, STREAM)

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        context: FlatContext,
        reshard: bool,
        options: PyTorch,
        between: Group | None = None,
    ) -> None:
        super().__init__(t, parameters, group, context, reshard, between)
        self.strategy_frees = context.reshards
        self.freed, self.options = context.freed, options
        self.elements = sum(p.elements for p in parameters)
        self.ready: tuple[int, ...] = ()
        # Bytes of a sharded parameter and of its gradient.
        self.wide = 4 if options.master_weights else t.itemsize

    def _keep_shards(self) -> list[Storage]:
        size = self.stored / self.group.size
        return [Storage(self.t.memory, size, "parameters")]

    # -- parameters -----------------------------------------------------------------------------
    def unshard(self, copy_in: str = UNSHARD) -> None:
        if self.unsharded is not None or self.gathered is not None:
            return
        t = self.t
        if self.options.limit_all_gathers and len(self.freed) >= IN_FLIGHT:
            t.synchronize(event=self.freed.pop(0))
        t.cpu("fsdp_unshard")
        with t.on_stream(copy_in):
            self.gathered = Storage(t.memory, self.full, "buffers")
            if self.options.master_weights:
                n = self.elements // self.group.size
                t.launch(Kernel("fused", (n,), bytes=6.0 * n))
            self.group.collective(t, "all_gather", self.full, STREAM, in_place=True)
        self.ready = t.record(STREAM)

    def wait(self, forward: bool) -> None:
        if self.unsharded is not None:
            return
        t = self.t
        t.cpu("fsdp_wait")
        t.wait(self.ready)
        self.unsharded = None if self.gathered is None else [self.gathered]
        self.gathered = None

    def reshard(self) -> None:
        if self.unsharded is not None and self.options.limit_all_gathers:
            self.freed.append(self.t.record())
        self.unsharded = None

    def pre_backward(self) -> None:
        self.t.cpu("fsdp_pre_backward")
        self.unshard()
        self.wait(forward=False)
        if self.options.prefetch == "before":
            self._prefetch()

    def _prefetch(self) -> None:
        at = self.context.order.index(self) if self in self.context.order else 0
        if at > 0:
            self.context.order[at - 1].unshard()

    # -- gradients ------------------------------------------------------------------------------
    def post_backward(self) -> None:
        """Frees the parameters; joins, casts, scales and reduces the gradients; keeps the sum of the shards."""
        t, context, options = self.t, self.context, self.options
        t.cpu("fsdp_post_backward")
        self.open = False
        if not self.trained:
            self._free_in_backward()
            return
        t.launch(Kernel("cat", (self.elements,), bytes=2 * self.full))
        self._free_in_backward()
        if options.prefetch == "after":
            self._prefetch()
        if not self.reduces:
            return
        size = 4 if options.reduce_dtype == "fp32" else t.itemsize
        buffer = Storage(t.memory, size * self.elements, "buffers")
        if size != t.itemsize:
            t.launch(Kernel("fused", (self.elements,), bytes=6.0 * self.elements))
        t.launch(Kernel("div", (self.elements,), bytes=2.0 * size * self.elements))
        for p in self.parameters:
            p.grad = None
        stream = self._reduce(float(size * self.elements))
        self._add_shard(size, stream)
        context.reduce_input = buffer
        context.reduced, context.done = t.record(STREAM), t.record(stream)

    def _reduce(self, size: float) -> str:
        """Sums gradients of so many bytes over the ranks, those with the same shard too; the stream it ends on."""
        t = self.t
        self.group.collective(t, "reduce_scatter", size, STREAM)
        if self.between is None:
            return STREAM
        with t.on_stream(STREAM):
            shard = size / self.group.size
            self.between.collective(t, "all_reduce", shard, ALL_REDUCE)
        return ALL_REDUCE

    def _free_in_backward(self) -> None:
        """SHARD_GRAD_OP keeps parameters while gradients only add up (_should_free_in_backward)."""
        if self.reduces or self.strategy_frees:
            self.reshard()

    def _add_shard(self, size: int, stream: str) -> None:
        """The reduced shard becomes the gradient, or is added to that of the microbatches before."""
        t, n = self.t, self.elements // self.group.size
        first = self.grad is None
        if first:
            self.grad = Storage(t.memory, self.wide * n, "gradients")
        passes = size + self.wide + (0 if first else self.wide)
        if not first or size != self.wide:
            t.launch(Kernel("fused", (n,), bytes=float(passes * n)), stream)
