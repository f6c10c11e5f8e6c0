"""A unit of PyTorch's FSDP: the tensors of one module, with the hooks that gather, free and reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage, storages
from prestep.workloads.sharding.host import HostMemory
from prestep.workloads.sharding.policy import Mesh, Part
from prestep.workloads.sharding.unit import Flow, ShardedUnit
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass
class ModuleFlow(Flow):
    """What all units of one model share; ``order``: those that ran forward, in order."""

    order: list[ModuleUnit] = field(default_factory=list)

    def finish(self, t: Tape) -> None:
        super().finish(t)
        self.order.clear()


class ModuleUnit(ShardedUnit):
    """The parameters of one module.

    Attributes
    ----------
    parameters, trained : list of Tensor
        All, and those that are not frozen: they alone have gradients and are updated.
    sums : list of Storage
        Whole gradients of earlier microbatches that wait to be reduced, where that is not their own type.
    open : bool
        Whether the module has run forward, and nobody has told the unit yet that it has run backward.
    behind : sequence of ModuleUnit, optional
        What to gather while the module runs backward (set_modules_to_forward_prefetch); None: the unit that ran before.
    """

    flow: ModuleFlow

    def __init__(
        self,
        tape: Tape,
        parameters: list[Tensor],
        mesh: Mesh,
        flow: ModuleFlow,
        reshards: bool,
    ) -> None:
        super().__init__(tape, [], flow, len(parameters))
        self.parameters, self.reshards = parameters, reshards
        self.trained = [p for p in parameters if p.requires_grad]
        self.parts = [self._part(mesh)]
        self.behind = None
        self.open = self.keep = self.sent_gradients = False
        for p in parameters:
            p.storage = None
        self.shards_here = self._keep_shards()
        self.grad: Storage | None = None
        self.sums: list[Storage] = []

    def _part(self, mesh: Mesh) -> Part:
        """All parameters; those of a flat parameter have gradients if one of them has."""
        narrow, flat = self.t.itemsize, self.policy.flat
        wide, ranks = self.policy.reduced[0], 1 if flat else mesh.group.size
        count = {p: padded(p, ranks) for p in self.parameters}
        trained = self.parameters if flat and self.trained else self.trained
        full = float(sum(p.itemsize * n for p, n in count.items()))
        gradient = float(sum(p.itemsize * count[p] for p in trained))
        elements = sum(count[p] for p in trained)
        return Part(
            mesh,
            sum(count.values()),
            elements,
            full,
            float(sum(p.stored * n for p, n in count.items())),
            float(self.policy.sent * sum(count.values())) or full,
            gradient,
            float(wide * elements) if wide else gradient,
            float(sum(p.stored * count[p] for p in trained)),
            narrow,
            tensors=len(self.parameters),
        )

    @property
    def part(self) -> Part:
        """A module lies on one mesh."""
        return self.parts[0]

    @property
    def alone(self) -> bool:
        """Whether no other rank has a part: parameters are copied, and nothing is gathered or scattered."""
        return not self.part.mesh.shards

    def _keep_shards(self) -> list[Storage]:
        """Memory of this rank's part of every parameter; none where its host keeps them."""
        part, ranks = self.part, self.part.ranks
        if (host := self.flow.host) is not None:
            host.keep("parameters", part.full / part.narrow / ranks)
            host.keep("gradients", part.gradient / part.narrow / ranks)
            return []
        each = [p.stored * padded(p, ranks) / ranks for p in self.parameters]
        sizes = [part.stored / ranks] if self.policy.flat else each
        return storages(self.t.memory, sizes, "parameters")

    def shards(self) -> list[Tensor]:
        """What this rank keeps of every parameter, as the optimizer sees it."""
        kept = []
        for p in self.trained:
            ranks = self.part.ranks
            count = p.elements if self.policy.flat else padded(p, ranks)
            shard = Tensor(None, (-(-count // ranks),), p.itemsize)
            shard.name, shard.whole, shard.stored = p.name, p.shape, p.stored
            kept.append(shard)
        return kept

    # -- parameters -----------------------------------------------------------------------------
    def gather_in_fp8(self) -> None:
        """Sends matrices in 8 bits, which layers multiply as they come."""
        cast = sum(p.elements for p in self.parameters if len(p.shape) == 2)
        self.parts = [replace(self.part, sent=self.part.full - cast, cast=cast)]

    def gather(self, stream: str = "") -> None:
        if self.alone and self.whole is None and self.coming is None:
            self.spend("fsdp_unshard", self.tensors)
            self.coming = ()
        super().gather(stream)

    def wait(self, forward: bool = False) -> None:
        if not self.alone or self.coming is None:
            super().wait(forward)
            return
        t, self.coming = self.t, None
        self.spend("fsdp_wait", self.tensors)
        self.fetch(self.part, t.stream)
        self.whole = self.unpacked()
        for p in self.parameters:
            t.launch(Kernel("aten copy", (p.elements,), bytes=2 * p.size))

    def unpacked(self) -> list[Storage]:
        """Views of the gathered flat parameter, or tensors apart, without those that are used in 8 bits."""
        if self.policy.flat:
            return super().unpacked()
        cast = self.part.cast > 0
        sizes = [
            p.size - p.elements * (cast and len(p.shape) == 2) for p in self.parameters
        ]
        return storages(self.t.memory, sizes, "buffers")

    # -- the module's hooks -----------------------------------------------------------------------
    def forward(self, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Runs a module with its parameters gathered; sets up its backward hooks."""
        t = self.t
        self.pre_forward()
        if x.requires_grad and t.grad_enabled:
            x = t.apply(x.view(*x.shape), [x], self._post_backward)
        return self._ran(run(x))

    def forward_first(self, run: Callable[[], Tensor]) -> Tensor:
        """The same of a module whose input has no gradient: the root, or an embedding."""
        self.flow.begin(self.t)
        self.pre_forward()
        return self._ran(run())

    def _ran(self, out: Tensor) -> Tensor:
        """The output, whose gradient calls the hook before the module's backward pass."""
        self.t.cpu("fsdp_post_forward")
        if self.t.grad_enabled:
            self.open = True
            if out.node is not None:
                out.node.hooks.append(self.pre_backward)
            if self.behind is None and self not in self.flow.order:
                self.flow.order.append(self)
        if self.reshards:
            self.free()
        return out

    def previous(self) -> Sequence[ShardedUnit]:
        if self.behind is not None:
            return self.behind
        order = self.flow.order
        at = order.index(self) if self in order else 0
        return order[at - 1 : at] if at > 0 else []

    def _post_backward(self, g: Tensor) -> list[Tensor | None]:
        self.post_backward()
        return [g]

    def post_backward(self) -> None:
        """Frees the parameters and reduces the gradients, where this microbatch reduces."""
        self.t.cpu("fsdp_post_backward")
        self.open = False
        if (
            self.policy.flat and self.trained
        ):  # autograd concatenates gradients of views
            part = self.part
            self.t.launch(Kernel("aten cat", (part.elements,), bytes=2 * part.full))
        # Whatever forward passes keep, a backward pass frees, unless it is told not to (set_reshard_after_backward).
        if self.reduces or not self.flow.keeps:
            self.free()
        if not self.trained:
            return
        for unit in self.previous() if self.policy.prefetch == "after" else ():
            unit.gather()
        self._add_up()
        if self.reduces:
            self._reduce()

    # -- gradients ------------------------------------------------------------------------------
    @property
    def reduces(self) -> bool:
        """Whether this microbatch's gradients are reduced: the last one's, or every one's."""
        choices = self.t.choices
        every = choices is not None and choices.reduce_every_microbatch
        return self.flow.sync or every

    def _add_up(self) -> None:
        """Adds whole gradients to those of microbatches before, in the type in which they will be reduced.

        Where it is the type in which backward makes them, autograd has added them up itself; and there is nothing to
        add to where every microbatch reduces (FSDPParam.to_accumulated_grad_if_needed).
        """
        part, begins, fresh = (
            self.part,
            not self.sums,
            [p for p in self.trained if p.grad],
        )
        own = self.policy.flat or part.reduced == part.gradient
        if own or not fresh or (self.reduces and begins):
            return
        wide = part.reduced / part.gradient
        if begins:
            sizes = [wide * p.size for p in self.trained]
            self.sums = storages(self.t.memory, sizes, "gradients")
        for p in fresh:
            moved = part.added(begins) * (p.size / part.gradient)
            self.t.launch(Kernel("aten add", (p.elements,), bytes=moved))
            p.grad = None

    def _reduce(self) -> None:
        """Packs, reduces and keeps the gradients; buffers stay until the next reduction has one."""
        t, flow, part, streams = self.t, self.flow, self.part, self.policy.streams
        if self.policy.one_buffer:
            self.t.cpu("fsdp_reduce_param", len(self.trained))
            t.wait(flow.reduced)
            flow.sending = None
        t.cpu("fsdp_reduce")
        buffer = self._pack()
        earlier = self.grad is not None  # of zero_grad, or of the microbatch before
        if not earlier:
            with t.on_stream(t.stream if self.policy.flat else streams.reduce):
                self.grad = Storage(t.memory, part.kept / part.ranks, "gradients")
        stream = self.scatter(part)
        for kernel in self.policy.store(part, earlier):
            t.launch(kernel, stream)
        if earlier and not self.policy.flat:
            self._add_shards(stream)
        if flow.host is not None:
            self._send_gradients(flow.host, stream)
        flow.sending = buffer
        flow.reduced, flow.done = t.record(streams.reduce), t.record(stream)

    def _pack(self) -> Storage:
        """Copies the gradients, or their sums, into the buffer that is reduced, in its type, and frees them."""
        t, part = self.t, self.part
        buffer = Storage(t.memory, part.reduced, "buffers")
        for kernel in self.policy.pack(part, bool(self.sums)):
            t.launch(kernel)
        self.sums = []
        for p in self.trained:
            p.grad = None
        return buffer

    def scatter(self, part: Part, among_copies: bool = True) -> str:
        if self.alone:
            t, stream = self.t, self.policy.streams.reduce
            t.wait(t.record(), stream)
            elements = int(part.gradient / part.narrow)
            t.launch(Kernel("aten copy", (elements,), bytes=2 * part.reduced), stream)
        return super().scatter(part, among_copies)

    def _add_shards(self, stream: str) -> None:
        """Adds the reduced shard to the one that is there, parameter by parameter (foreach_reduce)."""
        t, part = self.t, self.part
        with t.on_stream(self.policy.streams.reduce):
            new = Storage(t.memory, part.kept / part.ranks, "gradients")
        for p in self.trained:
            n = -(-p.elements // part.ranks)
            t.launch(Kernel("aten add", (n,), bytes=3.0 * p.stored * n), stream)
        del new

    def _send_gradients(self, host: HostMemory, stream: str) -> None:
        """Copies the reduced shard of the gradients to the host's memory; the GPU keeps none.

        Where a microbatch before has sent one, the host waits for the copy, and adds it to that (foreach_reduce).
        """
        part = self.part
        elements = part.gradient / part.narrow / part.ranks
        with self.t.on_stream(stream):
            host.to_host(elements, stream)
        if self.sent_gradients:
            self.t.synchronize(stream)
            host.pass_over(3.0 * host.wide * elements)
        self.grad, self.sent_gradients = None, True

    def keep_gradients(self) -> None:
        """zero_grad(set_to_none=False): the gradients of the step before are there, zeroed."""
        self.keep = True
        size = self.part.kept / self.part.ranks
        self.grad = Storage(self.t.memory, size, "gradients") if size else None

    def zero_grad(self) -> None:
        if not self.keep:
            self.grad = None
        self.flow.sending, self.sent_gradients = None, self.keep


def padded(p: Tensor, ranks: int) -> int:
    """Elements of a parameter whose first dimension is padded so that every rank has as many rows."""
    rows = p.shape[0] if p.shape else 1
    return -(-rows // ranks) * ranks * (p.elements // rows)
