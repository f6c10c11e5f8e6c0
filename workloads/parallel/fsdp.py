"""FSDP2 (``fully_shard``): parameters are gathered per module and gradients reduce-scattered.

Rules from torch/distributed/fsdp/_fully_shard: one communication group per wrapped module, copy-in and
all-gather on their own streams, copy-out on the compute stream, one prefetch in backward, and one
reduce-scatter input buffer at a time. With hybrid shards (HSDP) the reduced shard is then all-reduced between the
groups that hold a copy of the parameters each, on a stream of its own (_fsdp_collectives.py, foreach_reduce).
"""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage, storages
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.offload import HostMemory
from prestep.workloads.torch.tape import Tape, Tensor

COPY_IN, GATHER, REDUCE = "fsdp copy-in", "nccl all-gather", "nccl reduce-scatter"
ALL_REDUCE = "nccl hybrid"


class Context:
    """What all groups of one model share.

    Attributes
    ----------
    order : list of FullyShard
        Groups in the order of their forward pass.
    reduced : tuple of int
        End of the reduce-scatter whose buffer is in use.
    done : tuple of int
        End of all that was issued to reduce gradients.
    sync : bool
        Whether the next backward pass reduces.
    keeps : bool
        Whether it leaves parameters gathered (a pipeline's, until its gradients are reduced).
    begun : bool
        Whether a forward pass has begun since gradients were reduced.
    on_host : bool
        Whether gradients go to the host's memory: the host waits for them at the end of a backward pass.
    """

    def __init__(self) -> None:
        self.order: list[FullyShard] = []
        self.reduced: tuple[int, ...] = ()
        self.done: tuple[int, ...] = ()
        self.keeps = self.begun = self.on_host = False
        self.reduce_input: Storage | None = None
        self.gathered: Storage | None = None
        self.sync = True


class FullyShard:
    """The parameters of one module, sharded over a group; `between`: ranks of other groups with the same shard.

    Attributes
    ----------
    full, stored : float
        Bytes of all parameters as the module computes with them, and as shards keep them: in fp32 with master weights.
    trained : list of Tensor
        Those that are not frozen: they alone have gradients, of `gradient` bytes, and are updated.
    kept, reduced : float
        Bytes of their gradients as shards keep them, in the type of the parameters, and as they are reduced.
    sums : list of Storage
        Whole gradients of earlier microbatches that wait to be reduced, where that is not their own type.
    open : bool
        Whether the module has run forward, and nobody has told the group yet that it has run backward.
    ahead, behind : list of FullyShard, optional
        What to gather while the module runs forward, and backward (set_modules_to_forward_prefetch); None: forward
        nothing, as the host is ahead, backward the group that ran before.
    """

    streams = (COPY_IN, GATHER)

    def __init__(
        self,
        t: Tape,
        parameters: list[Tensor],
        group: Group,
        context: Context,
        reshard: bool,
        between: Group | None = None,
        host: HostMemory | None = None,
    ) -> None:
        self.between, self.host = between, host
        self.ahead: list[FullyShard] | None = None
        self.behind: list[FullyShard] | None = None
        self.t, self.parameters, self.group = t, parameters, group
        self.context, self.reshard_after = context, reshard
        self._measure(parameters)
        self.open = False
        self.sent, self.cast = self.full, 0  # bytes gathered, elements of them in fp8
        for p in parameters:
            p.storage = None
        self.shards_here = self._keep_shards()
        self.unsharded: list[Storage] | None = None
        self.gathered: Storage | None = None
        self.grad: Storage | None = None
        self.sums: list[Storage] = []
        self.keep = self.sent_gradients = False

    def _keep_shards(self) -> list[Storage]:
        """Memory of this rank's part of every parameter; none where its host keeps them."""
        host = self.host
        if host is not None:
            host.keep("parameters", self.full / self.t.itemsize / self.group.size)
            host.keep("gradients", self.gradient / self.t.itemsize / self.group.size)
            return []
        sizes = [p.stored_size / self.group.size for p in self.parameters]
        return storages(self.t.memory, sizes, "parameters")

    def _whole(self) -> list[Storage]:
        """Memory of every parameter as the module computes with it: of those that are cast in 8 bits."""
        sizes = [
            p.size - p.elements * (self.cast > 0 and len(p.shape) == 2)
            for p in self.parameters
        ]
        return storages(self.t.memory, sizes, "buffers")

    def _measure(self, parameters: list[Tensor]) -> None:
        """Bytes of the parameters and of their gradients, as they are kept and as they travel."""
        self.full = sum(p.size for p in parameters)
        self.stored = sum(p.stored_size for p in parameters)
        self.trained = [p for p in parameters if p.requires_grad]
        self.gradient = sum(p.size for p in self.trained)
        self.kept = sum(p.stored_size for p in self.trained)
        self.reduced = self.gradient
        if self.t.choices is not None and self.t.choices.reduce_dtype == "fp32":
            self.reduced = 4.0 * sum(p.elements for p in self.trained)

    def shards(self) -> list[Tensor]:
        """What this rank keeps of every parameter, as the optimizer sees it."""
        kept = []
        for p in self.trained:
            kept.append(Tensor(None, (-(-p.elements // self.group.size),), p.itemsize))
            kept[-1].name, kept[-1].whole, kept[-1].stored = p.name, p.shape, p.stored
        return kept

    # -- parameters -----------------------------------------------------------------------------
    def unshard(self, copy_in: str = COPY_IN) -> None:
        """Issues copy-in and all-gather, unless the parameters are there or under way."""
        if self.unsharded is not None or self.gathered is not None:
            return
        t = self.t
        t.cpu("fsdp_unshard")
        t.cpu("fsdp_unshard_param", len(self.parameters))
        if self.alone:
            self.gathered = Storage(t.memory, 0.0, "buffers")
            return
        with t.on_stream(copy_in):
            self.gathered = Storage(t.memory, self.sent, "buffers")
            shard = self.sent / self.group.size
            self._fetch(copy_in)
            if self.cast:
                self._cast()
            read = shard / self.full * self.stored  # cast where shards are in fp32
            t.launch(
                Kernel("foreach_copy", (int(shard / t.itemsize),), bytes=read + shard)
            )
            # all_gather_copy_in: the input is a slice of the output.
            self.group.collective(t, "all_gather", self.sent, GATHER, in_place=True)

    def _fetch(self, stream: str) -> None:
        """Copies the shard from the host's memory, where it is kept there."""
        if self.host is not None:
            elements = self.full / self.t.itemsize / self.group.size
            self.host.to_gpu(elements, stream)

    def gather_in_fp8(self) -> None:
        """Sends matrices in 8 bits, which layers multiply as they come."""
        self.cast = sum(p.elements for p in self.parameters if len(p.shape) == 2)
        self.sent = self.full - self.cast

    def _cast(self) -> None:
        """Weights of quantized layers to fp8 before they are sent (torchao's fsdp_pre_all_gather)."""
        t, elements = self.t, self.cast // self.group.size
        read = self.stored / self.full * t.itemsize
        t.launch(Kernel("fused_pointwise", (elements,), bytes=(read + 1.0) * elements))

    def wait(self, forward: bool) -> None:
        """The compute stream waits for the all-gather and copies the parameters out of its buffer."""
        if self.unsharded is not None:
            return
        t = self.t
        t.cpu("fsdp_wait")
        t.cpu("fsdp_wait_param", len(self.parameters))
        if self.alone:
            self._copy_out_alone()
            return
        t.wait(t.record(GATHER))
        self.context.gathered = None
        self.unsharded = self._whole()
        t.launch(Kernel("copy_h2d", (4096,), bytes=32768.0))
        elements = int(self.sent / t.itemsize)
        t.launch(Kernel("split_with_sizes_copy", (elements,), bytes=2 * self.sent))
        t.wait(t.record(), COPY_IN)
        t.wait(t.record(), GATHER)
        if forward:
            self.context.gathered = self.gathered
        self.gathered = None

    @property
    def alone(self) -> bool:
        """Whether no other rank has a part: parameters are copied, and nothing is gathered or scattered."""
        return self.group.size == 1

    def _copy_out_alone(self) -> None:
        t = self.t
        self._fetch(t.stream)
        self.unsharded, self.gathered = self._whole(), None
        for p in self.parameters:
            t.launch(Kernel("copy", (p.elements,), bytes=2 * p.size))

    def reshard(self) -> None:
        self.unsharded = None

    # -- the module's hooks -----------------------------------------------------------------------
    def forward(
        self, inputs: Tensor | None, run: Callable[[Tensor | None], Tensor]
    ) -> Tensor:
        """Runs a module with its parameters gathered; sets up its backward hooks."""
        t = self.t
        t.cpu("fsdp_pre_forward")
        if inputs is None:  # the root module, or an embedding
            self.begin()
        self.unshard()
        self.wait(forward=True)
        for group in self.ahead or ():
            group.unshard()
        if inputs is not None and inputs.requires_grad and t.grad_enabled:
            inputs = t.apply(inputs.view(*inputs.shape), [inputs], self._post_backward)
        out = run(inputs)
        t.cpu("fsdp_post_forward")
        if t.grad_enabled:
            self.open = True
            if out.node is not None:
                out.node.hooks.append(self.pre_backward)
            if self.behind is None and self not in self.context.order:
                self.context.order.append(self)
        if self.reshard_after:
            self.reshard()
        return out

    def begin(self) -> None:
        """The first forward pass: gathering starts after the optimizer has written the shards."""
        if self.context.begun:
            return
        self.context.begun = True
        for stream in self.streams:
            self.t.wait(self.t.record(), stream)

    def pre_backward(self) -> None:
        """Gathers this group if needed and prefetches the one that ran before it."""
        self.t.cpu("fsdp_pre_backward")
        self.unshard()
        self.wait(forward=False)
        for group in self._before():
            group.unshard()

    def _before(self) -> list[FullyShard]:
        """What to gather while the module runs backward."""
        if self.behind is not None:
            return self.behind
        at = self.context.order.index(self)
        return self.context.order[at - 1 : at] if at > 0 else []

    def _post_backward(self, g: Tensor) -> list[Tensor | None]:
        self.post_backward()
        return [g]

    def post_backward(self) -> None:
        """Frees the parameters and reduce-scatters the gradients, where this microbatch reduces."""
        t, context = self.t, self.context
        t.cpu("fsdp_post_backward")
        self.open = False
        # Whatever forward passes keep, a backward pass frees, unless it is told not to (set_reshard_after_backward).
        if self.reduces or not context.keeps:
            self.reshard()
        if not self.trained:
            return
        self._add_up()
        if not self.reduces:
            return
        t.cpu("fsdp_reduce_param", len(self.trained))
        t.wait(context.reduced)
        context.reduce_input = None
        context.reduce_input = self._copy_in()
        earlier = self.grad is not None  # of zero_grad, or of the microbatch before
        if not earlier:
            with t.on_stream(REDUCE):
                self.grad = Storage(t.memory, self.kept / self.group.size, "gradients")
        self._scatter()
        stream = self._sum_copies(self.reduced / self.group.size)
        self._store(earlier, stream)
        if self.host is not None:
            self._send(self.host, stream)
        context.reduced, context.done = t.record(REDUCE), t.record(stream)

    def _scatter(self) -> None:
        """Reduces the buffer to this rank's shard; a rank alone copies it."""
        t = self.t
        if self.alone:
            t.wait(t.record(), REDUCE)
            elements = int(self.gradient / t.itemsize)
            t.launch(Kernel("copy", (elements,), bytes=2 * self.reduced), REDUCE)
        else:
            self.group.collective(t, "reduce_scatter", self.reduced, REDUCE)

    def _add_up(self) -> None:
        """Adds whole gradients to those of microbatches before, in the type in which they will be reduced.

        Where it is the type in which backward makes them, autograd has added them up itself; and there is nothing to
        add to where every microbatch reduces (FSDPParam.to_accumulated_grad_if_needed).
        """
        begins, fresh = not self.sums, [p for p in self.trained if p.grad]
        if self.reduced == self.gradient or not fresh or (self.reduces and begins):
            return
        wide = self.reduced / self.gradient
        if begins:
            sizes = [wide * p.size for p in self.trained]
            self.sums = storages(self.t.memory, sizes, "gradients")
        for p in fresh:
            moved = p.size * (1.0 + wide * (1 if begins else 2))
            self.t.launch(Kernel("add", (p.elements,), bytes=moved))
            p.grad = None

    def _send(self, host: HostMemory, stream: str) -> None:
        """Copies the reduced shard of the gradients to the host's memory; the GPU keeps none.

        Where a microbatch before has sent one, the host waits for the copy, and adds it to that (foreach_reduce).
        """
        elements = self.gradient / self.t.itemsize / self.group.size
        with self.t.on_stream(stream):
            host.to_host(elements, stream)
        if self.sent_gradients:
            self.t.synchronize(stream)
            host.pass_over(3.0 * host.wide * elements)
        self.grad, self.sent_gradients = None, True

    def _sum_copies(self, size: float) -> str:
        """All-reduces the reduced shard between its copies, if there are; the stream on which it is complete."""
        if self.between is None:
            return REDUCE
        with self.t.on_stream(REDUCE):
            self.between.collective(self.t, "all_reduce", size, ALL_REDUCE)
        return ALL_REDUCE

    @property
    def reduces(self) -> bool:
        """Whether this microbatch's gradients are reduced: the last one's, or every one's."""
        choices = self.t.choices
        every = choices is not None and choices.reduce_every_microbatch
        return self.context.sync or every

    def _copy_in(self) -> Storage:
        """Copies the gradients, or their sums, into the buffer that is reduced, in its type, and frees them."""
        t, read = self.t, self.reduced if self.sums else self.gradient
        t.launch(Kernel("copy_h2d", (4096,), bytes=426000.0))
        buffer = Storage(t.memory, self.reduced, "buffers")
        elements = int(self.gradient / t.itemsize)
        t.launch(Kernel("chunk_cat", (elements,), bytes=read + self.reduced))
        self.sums = []
        for p in self.trained:
            p.grad = None
        return buffer

    def _store(self, earlier: bool, stream: str) -> None:
        """The reduced shard in the type of the parameters, added to the one that is there, parameter by parameter.

        Source: foreach_reduce of _fsdp_collectives.py.
        """
        t, ranks = self.t, self.group.size
        if self.kept != self.reduced:
            n = int(self.gradient / t.itemsize / ranks)
            moved = (self.kept + self.reduced) / ranks
            t.launch(Kernel("copy", (n,), bytes=moved), stream)
        if not earlier:
            return
        with t.on_stream(REDUCE):
            new = Storage(t.memory, self.kept / ranks, "gradients")
        for p in self.trained:
            n = -(-p.elements // ranks)
            t.launch(Kernel("add", (n,), bytes=3.0 * p.stored * n), stream)
        del new

    def keep_gradients(self) -> None:
        """zero_grad(set_to_none=False): the gradients of the step before are there, zeroed."""
        self.keep = True
        size = self.kept / self.group.size
        self.grad = Storage(self.t.memory, size, "gradients") if size else None

    def zero_grad(self) -> None:
        if not self.keep:
            self.grad = None
        self.context.reduce_input, self.sent_gradients = None, self.keep
