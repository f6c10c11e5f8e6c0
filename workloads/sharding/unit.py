"""Parameters that are gathered, freed and reduced together: the engine of every fully sharded policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prestep.workloads.memory.account import Storage
from prestep.workloads.sharding.host import HostMemory
from prestep.workloads.sharding.policy import Part, Policy
from prestep.workloads.torch.tape import Tape


@dataclass
class Flow:
    """What all units of one model share.

    Attributes
    ----------
    policy : Policy
    host : HostMemory, optional
        Where shards are kept; None: on the GPU.
    keeps : bool
        Whether backward passes leave parameters gathered (a pipeline's, until its gradients are reduced; FSDP1's
        SHARD_GRAD_OP while gradients only add up).
    sync : bool
        Whether the next backward pass reduces.
    begun : bool
        Whether a forward pass has begun since gradients were reduced.
    reduced, done : tuple of int
        End of the reduction whose buffer is in use, and of all that was issued to reduce gradients.
    freed : list of tuple of int
        Ends of the computation that used units freed lately, where gathers in flight are limited.
    sending : Storage, optional
        Buffer of the last reduction.
    arrived : optional
        Buffer of the last gather in a forward pass, and the copy out of it.
    """

    policy: Policy
    host: HostMemory | None = None
    keeps: bool = False
    sync: bool = True
    begun: bool = False
    reduced: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    freed: list[tuple[int, ...]] = field(default_factory=list)
    sending: Storage | None = None
    arrived: tuple[Storage | None, tuple[int, ...]] | None = None

    def begin(self, t: Tape) -> None:
        """The first forward pass: gathering starts after the optimizer has written the shards."""
        streams = () if self.begun else self.policy.streams[:2]
        self.begun = True
        for stream in streams:
            t.wait(t.record(), stream)

    def finish(self, t: Tape) -> None:
        """After the last unit: the compute stream waits until its gradients are reduced."""
        t.cpu("fsdp_finalize")
        t.wait(self.done)
        if self.host is not None and self.done:
            t.synchronize(event=self.done)
        self.reduced = self.done = ()
        self.begun = False
        self.sending = self.arrived = None


class ShardedUnit:
    """Parameters of one module or layer.

    Attributes
    ----------
    parts : list of Part
        What is gathered, by mesh.
    tensors : int
        Parameters that the host walks over.
    whole : list of Storage, optional
        Memory of gathered parameters; None: they are shards.
    coming : tuple of int, optional
        The end of a gather under way.
    ahead, behind : sequence of ShardedUnit
        What to gather while it runs forward, and backward.
    """

    ahead: Sequence[ShardedUnit] = ()
    behind: Sequence[ShardedUnit] | None = ()

    def __init__(
        self, tape: Tape, parts: Sequence[Part], flow: Flow, tensors: int
    ) -> None:
        self.t, self.flow, self.policy = tape, flow, flow.policy
        self.parts, self.tensors = list(parts), tensors
        self.whole: list[Storage] | None = None
        self.coming: tuple[int, ...] | None = None
        self.buffer: Storage | None = None

    @property
    def sent(self) -> float:
        """Bytes that are gathered."""
        return sum(part.sent for part in self.parts)

    def spend(self, operation: str, tensors: int | None = None) -> None:
        """Time of the host for a unit, and for the tensors in it."""
        if self.policy.host:
            self.t.cpu(operation, len(self.parts))
        if tensors is not None:
            self.spend_on_tensors(operation)

    def spend_on_tensors(self, operation: str) -> None:
        """Time of the host for the tensors in a unit."""
        if self.policy.host == "tensor":
            self.t.cpu(f"{operation}_param", self.tensors)

    def pre_forward(self) -> None:
        """The parameters are there, and what is said to come next is on its way; then inputs get their hooks."""
        self.spend("fsdp_pre_forward")
        self._present(self.ahead, forward=True)
        self.spend("fsdp_inputs")

    def pre_backward(self) -> None:
        """The same before the backward pass, beside which the unit that ran before it is gathered."""
        self.spend("fsdp_pre_backward")
        before = self.policy.prefetch == "before"
        self._present(self.previous() if before else ())

    def previous(self) -> Sequence[ShardedUnit]:
        """What to gather beside the backward pass."""
        return self.behind or ()

    def _present(self, following: Sequence[ShardedUnit], forward: bool = False) -> None:
        """Gathers this unit and awaits it, with others before or behind that."""
        self.gather()
        for unit in following if self.policy.by_elements else ():
            unit.gather()
        self.wait(forward)
        for unit in following:
            unit.gather()

    def gather(self, stream: str = "") -> None:
        """Issues copy-in and all-gather, unless the parameters are there or under way."""
        if self.whole is not None or self.coming is not None or not self.parts:
            return
        t, policy, streams = self.t, self.policy, self.policy.streams
        freed = self.flow.freed
        if policy.in_flight and len(freed) >= policy.in_flight:
            t.synchronize(event=freed.pop(0))
        self.spend("fsdp_unshard", self.tensors)
        stream = stream or streams.copy_in or t.stream
        with t.on_stream(stream):
            self.buffer = Storage(t.memory, self.sent, "buffers")
            for part in self.parts:
                self._send(part, stream)
        self.coming = t.record(streams.gather)

    def _send(self, part: Part, stream: str) -> None:
        """One mesh's shards into the buffer, of which their input is a slice (all_gather_copy_in), and gathered."""
        t, gather = self.t, self.policy.streams.gather
        self.fetch(part, stream)
        for kernel in self.policy.copy_in(part):
            t.launch(kernel)
        part.mesh.group.collective(t, "all_gather", part.sent, gather, in_place=True)
        for kernel in self.policy.arrive(part):
            t.launch(kernel, gather)

    def fetch(self, part: Part, stream: str) -> None:
        """Copies the shard from the host's memory, where it is kept there."""
        if self.flow.host is not None:
            elements = part.full / part.narrow / part.ranks
            self.flow.host.to_gpu(elements, stream)

    def wait(self, forward: bool = False) -> None:
        """The computing stream waits for the gather, and copies parameters out of its buffer.

        Then others may use the buffer; in a forward pass it stays until the next unit arrives, whose gather does not
        wait for the copy (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, wait_for_unshard).
        """
        if self.coming is None:
            return
        t = self.t
        self.spend("fsdp_wait", self.tensors)
        t.wait(self.coming)
        self.let_through()
        self.whole = self.unpacked()
        kernels = [k for part in self.parts for k in self.policy.copy_out(part)]
        for kernel in kernels:
            t.launch(kernel)
        if kernels:
            self.flow.arrived = self.buffer, t.record()
            if not forward:
                self.let_through()
        self.buffer = self.coming = None
        self.spend_on_tensors("fsdp_present")  # each is put into its module

    def let_through(self) -> None:
        """Further gathers wait until parameters were copied out of the last one's buffer, which others may use then."""
        if self.flow.arrived is None:
            return
        (_, copied), self.flow.arrived = self.flow.arrived, None
        for stream in (self.policy.streams.copy_in, self.policy.streams.gather):
            self.t.wait(copied, stream)

    def unpacked(self) -> list[Storage]:
        """Memory of the parameters as they are computed with: the gather's buffer."""
        return [] if self.buffer is None else [self.buffer]

    def free(self) -> None:
        """Parameters are shards again."""
        if self.whole is not None and self.policy.in_flight:
            self.flow.freed.append(self.t.record())
        self.whole = None

    def scatter(self, part: Part, among_copies: bool = True) -> str:
        """Reduces a buffer to shards, and shards over their copies; the stream on which they are complete."""
        t, streams, (group, copies) = self.t, self.policy.streams, part.mesh
        if part.mesh.shards:
            group.collective(t, "reduce_scatter", part.reduced, streams.reduce)
        if copies is None or not among_copies:
            return streams.reduce
        with t.on_stream(streams.reduce if part.mesh.shards else t.stream):
            shard = part.reduced / group.size
            copies.collective(t, "all_reduce", shard, streams.between)
        return streams.between
