"""A symbolic PyTorch: runs a model's Python on tensors that have a shape and a size but no numbers.

What a rank launches, in which order, and which memory is alive at each moment follow from the same
rules as in PyTorch: operators launch kernels on streams, autograd nodes keep what backward needs and
run in reverse order of creation, and a tensor's memory is freed when Python drops the last reference.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.graph.kernel import Kernel
from sim.graph.opgraph import COMM, KERNEL, SYNC, Program, Rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.graph.opgraph import Chain
    from workloads.job.pytorch import PyTorch

OWNERS = ("parameters", "gradients", "optimizer", "activations", "buffers", "workspace")
PHASES = ("forward", "backward", "optimizer", "communication")
Backward = Callable[["Tensor"], "list[Tensor | None]"]


class Memory:
    """Bytes alive by owner, in the order the host issues work (as PyTorch's allocator counts them)."""

    def __init__(self) -> None:
        self.alive = dict.fromkeys(OWNERS, 0.0)
        self.now = 0.0
        self.peak = 0.0
        self.at_peak = dict(self.alive)
        self.first_buckets = 0.0  # bytes DDP had before it rebuilt its buckets
        self.issued: Sized = ()  # the operations issued so far
        self.before = dict(
            self.alive
        )  # alive when the peak was last reset: as the step begins
        self.log: list[
            tuple[int, str, float]
        ] = []  # since then: operations issued, owner, bytes that came or went

    def allocate(self, size: float, owner: str) -> None:
        self.log.append((len(self.issued), owner, size))
        self.alive[owner] += size
        self.now += size
        if self.now > self.peak:
            self.peak = self.now
            self.at_peak = dict(self.alive)

    def reset_peak(self) -> None:
        self.peak, self.at_peak = self.now, dict(self.alive)
        self.before, self.log = dict(self.alive), []

    def release(self, size: float, owner: str) -> None:
        self.log.append((len(self.issued), owner, -size))
        self.alive[owner] -= size
        self.now -= size


class Storage:
    """A block of device memory, freed when the last tensor that views it goes."""

    __slots__ = ("memory", "owner", "size")

    def __init__(self, memory: Memory, size: float, owner: str) -> None:
        # The caching allocator hands out multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
        self.memory, self.size, self.owner = memory, -(-size // 512) * 512.0, owner
        memory.allocate(self.size, owner)

    def __del__(self) -> None:
        self.memory.release(self.size, self.owner)


class Node:
    """An autograd node: how the gradient of one output becomes gradients of its inputs."""

    __slots__ = ("backward", "captured", "edges", "hooks", "layer", "seq")

    def __init__(
        self,
        seq: int,
        edges: list[Node | Tensor | None],
        backward: Backward,
        layer: int,
        captured: bool = False,
    ) -> None:
        self.seq, self.edges, self.backward, self.layer, self.captured = (
            seq,
            edges,
            backward,
            layer,
            captured,
        )
        self.hooks: list[Callable[[], None]] = []


class Tensor:
    """Shape and element size over a storage; a leaf with ``requires_grad`` is a parameter."""

    __slots__ = (
        "grad",
        "itemsize",
        "local",
        "name",
        "node",
        "on_grad",
        "requires_grad",
        "shape",
        "storage",
    )

    def __init__(
        self,
        storage: Storage | None,
        shape: tuple[int, ...],
        itemsize: int = 2,
        node: Node | None = None,
    ) -> None:
        self.storage, self.shape, self.itemsize, self.node = (
            storage,
            shape,
            itemsize,
            node,
        )
        self.requires_grad = node is not None
        self.grad: Tensor | None = None
        self.on_grad: Callable[[Tensor], None] | None = None
        self.name = ""
        self.local = True

    @property
    def elements(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def size(self) -> float:
        return float(self.elements * self.itemsize)

    def view(self, *shape: int) -> Tensor:
        """The same storage and history with another shape (no kernel)."""
        t = Tensor(self.storage, shape, self.itemsize, self.node)
        t.requires_grad = self.requires_grad
        return t


class Tape:
    """Records the program of one rank while symbolic PyTorch code runs on it.

    Parameters
    ----------
    rank : int
    shared : Shared
        Tables common to all ranks of the graph.
    costs : dict
        Seconds of host time by operator name (see ``workloads/frameworks``).
    """

    def __init__(self, rank: int, shared: Shared, costs: dict[str, float]) -> None:
        self.rank, self.shared, self.costs = rank, shared, costs
        self.memory = Memory()
        self.phase, self.layer, self.microbatch = 0, -1, 0
        self.grad_enabled = True
        self.blocking = (
            False  # the host waits for all that it launches (CUDA_LAUNCH_BLOCKING)
        )
        self.drop: Callable[[Kernel], bool] | None = None  # kernels that are left out
        self.products = ""  # type in which linear layers of blocks compute; "": 16 bits
        self.choices: PyTorch | None = None  # the trainer's; None: the defaults
        self.host_pending = 0.0
        self.counts: dict[str, float] = defaultdict(
            float
        )  # host operations by name, for calibration
        self._kind: list[int] = []
        self.memory.issued = self._kind
        self._stream: list[int] = []
        self._payload: list[int] = []
        self._host: list[float] = []
        self._deps: list[tuple[int, ...]] = []
        self._phase: list[int] = []
        self._layer: list[int] = []
        self._microbatch: list[int] = []
        self._parts: list[tuple[int, ...]] = []
        self._names: list[str] = []
        self._last: dict[str, int] = {}
        self._waits: dict[str, list[int]] = {}
        self._seq = 0
        self._last_save = 0
        self._host_at_save: tuple[dict[str, float], float] = ({}, 0.0)
        self.stream = "compute"
        self.captured = False  # in a part that a CUDA graph replays
        self.launching = "launch"  # the host operation that launches a kernel
        self.deferred: list[Callable[[], None]] | None = (
            None  # weight gradients put off (zero bubble)
        )
        self.retained: list[
            Backward
        ] = []  # with them the graph, and so what it saved, stays alive

    # -- memory ---------------------------------------------------------------------------------
    def empty(
        self, shape: tuple[int, ...], itemsize: int = 2, owner: str = "activations"
    ) -> Tensor:
        """A new tensor of its own memory."""
        n = 1
        for s in shape:
            n *= s
        return Tensor(Storage(self.memory, n * itemsize, owner), shape, itemsize)

    def scratch(self, size: float) -> None:
        """Memory that lives as long as the kernel just launched: freed as soon as the host has launched it."""
        Storage(self.memory, size, "workspace")

    def parameter(self, *shape: int, itemsize: int = 2, name: str = "") -> Tensor:
        p = self.empty(shape, itemsize, "parameters")
        p.requires_grad, p.name = True, name
        return p

    # -- launches -------------------------------------------------------------------------------
    def cpu(self, name: str, count: float = 1.0) -> None:
        """Host time of an operator, spent before the next launch."""
        if self.captured:
            return
        self.counts[name] += count
        self.host_pending += self.costs[name] * count

    def launch(
        self, kernel: Kernel | Chain, stream: str | None = None, name: str = ""
    ) -> int:
        """A kernel on a stream; returns the operation's index."""
        if self.drop is not None and isinstance(kernel, Kernel) and self.drop(kernel):
            self.host_pending = 0.0
            return len(self._kind) - 1
        stream = stream or self.stream
        index = self._add(
            KERNEL, self.shared.kernel(kernel), stream, name or kernel.kind
        )
        if self.blocking:
            self.synchronize(stream)
        return index

    def communicate(self, parts: Iterable[int], stream: str, name: str) -> int:
        """An operation that takes part in the given rendezvous and ends when all of them have ended."""
        self._parts.append(tuple(parts))
        return self._add(COMM, len(self._parts) - 1, stream, name)

    def synchronize(
        self, stream: str = "compute", event: tuple[int, ...] | None = None
    ) -> int:
        """The host waits for everything issued on a stream so far, or for an event."""
        event = self.record(stream) if event is None else event
        self._waits["host"] = list(event)
        return self._add(SYNC, 0, "host", "synchronize")

    def _add(self, kind: int, payload: int, stream: str, name: str) -> int:
        index = len(self._kind)
        self._kind.append(kind)
        self._stream.append(self.shared.stream(stream))
        self._payload.append(payload)
        if not self.captured:
            self.counts[self.launching] += 1
            self.host_pending += self.costs[self.launching]
        self._host.append(self.host_pending)
        self.host_pending = 0.0
        self._deps.append(tuple(self._waits.pop(stream, ())))
        self._phase.append(self.phase)
        self._layer.append(self.layer)
        self._microbatch.append(self.microbatch)
        self._names.append(name)
        self._last[stream] = index
        return index

    @property
    def issued(self) -> int:
        """Operations so far."""
        return len(self._kind)

    # -- events ---------------------------------------------------------------------------------
    def record(self, stream: str | None = None) -> tuple[int, ...]:
        """An event on a stream: the operations whose end it marks.

        Before the first operation of a stream in this step that is its last one of the previous step, written
        as a negative number until the step is complete.
        """
        stream = stream or self.stream
        last = self._last.get(stream, -1 - self.shared.stream(stream))
        return (last, *self._waits.get(stream, ()))

    def wait(self, event: Iterable[int], stream: str | None = None) -> None:
        """Later operations of a stream start only after the event."""
        self._waits.setdefault(stream or self.stream, []).extend(event)

    # -- autograd -------------------------------------------------------------------------------
    def saves(self) -> None:
        """An operator is about to save an input for backward (recomputation stops after the last such moment)."""
        self._last_save = len(self._kind)
        self._host_at_save = dict(self.counts), self.host_pending

    def forget_after_last(self, kind: str, first: int) -> None:
        """Drops what was issued since ``first`` from the last kernel of a kind on."""
        named = [
            i for i in range(first, len(self._kind)) if self._names[i].startswith(kind)
        ]
        if named:
            self._last_save, self._host_at_save = named[-1], (dict(self.counts), 0.0)
            self._forget()

    def recompute(self, forward: Callable[[], Tensor]) -> Tensor:
        """Runs a region again, up to its last saved tensor (torch.utils.checkpoint's early stop)."""
        out = forward()
        self._forget()
        return out

    def _forget(self) -> None:
        """Takes back what was issued since the last moment at which something was saved."""
        columns: tuple[list[Any], ...] = (
            *(self._kind, self._stream, self._payload, self._host, self._deps),
            *(self._phase, self._layer, self._microbatch, self._names),
        )
        for column in columns:
            del column[self._last_save :]
        counts, self.host_pending = self._host_at_save
        self.counts = defaultdict(float, counts)
        for stream, last in list(self._last.items()):
            if last >= self._last_save:
                number = self.shared.streams[stream]
                # From the end, where it is found at once: this is done for every layer that is run again.
                self._last[stream] = next(
                    (
                        i
                        for i in reversed(range(len(self._stream)))
                        if self._stream[i] == number
                    ),
                    0,
                )

    def apply(self, out: Tensor, inputs: list[Tensor], backward: Backward) -> Tensor:
        """Gives ``out`` a history: ``backward`` maps its gradient to the gradients of ``inputs``."""
        if not self.grad_enabled or not any(t.requires_grad for t in inputs):
            return out
        self._seq += 1
        edges = [
            (t.node if t.node is not None else t) if t.requires_grad else None
            for t in inputs
        ]
        out.node = Node(self._seq, edges, backward, self.layer, self.captured)
        out.requires_grad = True
        return out

    def backward(self, root: Tensor, grad: Tensor) -> None:
        """Runs autograd from ``root`` (PyTorch: ready nodes in reverse order of creation, leaves at once)."""
        if root.node is None:
            return
        pending, uses = _dependencies(root.node)
        buffers: dict[Node, Tensor] = {root.node: grad}
        ready = [(-root.node.seq, root.node)]
        del grad, root
        outer = self.layer, self.captured
        while ready:
            _, node = heapq.heappop(ready)
            self.layer, self.captured = node.layer, node.captured
            g = buffers.pop(node, None)
            for hook in node.hooks:
                hook()
            grads: list[Tensor | None] = (
                node.backward(g) if g is not None else [None] * len(node.edges)
            )
            del g
            if self.deferred:  # nodes above the first weight are not reachable from it: PyTorch frees them
                self.retained.append(node.backward)
            node.backward = _released
            for i, edge in enumerate(node.edges):
                got, grads[i] = grads[i], None
                if isinstance(edge, Tensor):
                    self._arrive(edge, got, uses)
                elif edge is not None:
                    if got is not None:
                        self._merge(buffers, edge, got)
                    pending[edge] -= 1
                    if pending[edge] == 0:
                        heapq.heappush(ready, (-edge.seq, edge))
                got = None
            node.edges = []
        self.layer, self.captured = outer

    def _merge(self, buffers: dict[Node, Tensor], node: Node, grad: Tensor) -> None:
        if node in buffers:
            self.cpu("accumulate")
            self.launch(self.shared.elementwise("add", grad.elements, 3 * grad.size))
        else:
            buffers[node] = grad

    def _arrive(
        self, leaf: Tensor, grad: Tensor | None, uses: dict[Tensor, Uses]
    ) -> None:
        """A leaf's part of the gradient: those of all its uses are added up before its hook fires, once."""
        shared = uses.get(leaf)
        if shared is not None:
            shared.left -= 1
            if grad is not None and shared.grad is not None:
                self.cpu("accumulate")
                self.launch(
                    self.shared.elementwise("add", grad.elements, 3 * grad.size)
                )
            elif grad is not None:
                shared.grad = grad
            if shared.left:
                return
            grad, shared.grad = shared.grad, None
        if grad is not None:
            self.accumulate(leaf, grad)

    def accumulate(self, leaf: Tensor, grad: Tensor) -> None:
        """AccumulateGrad: takes the first gradient over, adds later ones in place, then calls the hook."""
        if leaf.name != "detached":
            self.cpu("accumulate_grad")
        if leaf.grad is None:
            leaf.grad = grad
            if (
                leaf.name != "detached"
                and grad.storage is not None
                and grad.storage.owner == "activations"
            ):
                _change_owner(grad.storage, "gradients")
        else:
            self.launch(self.shared.elementwise("add", grad.elements, 3 * grad.size))
        del grad
        if leaf.on_grad is not None:
            leaf.on_grad(leaf)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

    @contextmanager
    def capture(self, captured: bool = True, replay: bool = True) -> Iterator[None]:
        """What is issued here and its backward are replayed by a CUDA graph, which costs the host one operation.

        Without ``replay`` it belongs to a graph that was paid for.
        """
        if captured and replay and not self.captured:
            self.cpu("graph_replay")
        before, self.captured = self.captured, self.captured or captured
        try:
            yield
        finally:
            self.captured = before

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def launching_by(self, operation: str) -> Iterator[None]:
        """Kernels are launched by another host operation: compiled code has its own launchers."""
        before, self.launching = self.launching, operation
        try:
            yield
        finally:
            self.launching = before

    # -- result ---------------------------------------------------------------------------------
    def program(self) -> Program:
        """The recorded columns; dependencies on the previous step become negative indices."""
        n = len(self._kind)
        last = {
            -1 - self.shared.streams[stream]: index - n
            for stream, index in self._last.items()
        }
        deps = [
            tuple(d if d >= 0 else last[d] for d in dep if d >= 0 or d in last)
            for dep in self._deps
        ]
        return Program(
            self.rank,
            np.array(self._kind, np.int8),
            np.array(self._stream, np.int16),
            np.array(self._payload, np.int32),
            np.array(self._host, np.float64),
            tuple(deps),
            np.array(self._phase, np.int8),
            np.array(self._layer, np.int16),
            np.array(self._microbatch, np.int16),
            tuple(self._parts),
            tuple(self._names),
        )


@dataclass
class Uses:
    """How many uses of a leaf have not sent their gradient yet, and the sum of those that have."""

    left: int = 0
    grad: Tensor | None = None


def _dependencies(root: Node) -> tuple[dict[Node, int], dict[Tensor, Uses]]:
    """How many gradients each node waits for; the parameters used more than once (tied embeddings)."""
    todo, pending = [root], {root: 0}
    uses: dict[Tensor, Uses] = {}
    while todo:
        for e in todo.pop().edges:
            if isinstance(e, Node):
                if e not in pending:
                    pending[e] = 0
                    todo.append(e)
                pending[e] += 1
            elif e is not None and e.name != "detached":
                uses.setdefault(e, Uses()).left += 1
    return pending, {leaf: use for leaf, use in uses.items() if use.left > 1}


class Shared:
    """Tables that all ranks of one graph have in common: kernels, streams, rendezvous."""

    def __init__(self) -> None:
        self.kernels: dict[Kernel | Chain, int] = {}
        self.streams: dict[str, int] = {}
        self.rendezvous = Rendezvous()

    def kernel(self, kernel: Kernel | Chain) -> int:
        return self.kernels.setdefault(kernel, len(self.kernels))

    def stream(self, name: str) -> int:
        return self.streams.setdefault(name, len(self.streams))

    def elementwise(self, kind: str, elements: int, moved: float) -> Kernel:
        return Kernel(kind, (elements,), bytes=moved)


def _released(grad: Tensor) -> list[Tensor | None]:
    raise RuntimeError("backward through the same node twice")


def _change_owner(storage: Storage, owner: str) -> None:
    storage.memory.release(storage.size, storage.owner)
    storage.owner = owner
    storage.memory.allocate(storage.size, owner)
