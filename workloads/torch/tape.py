"""A symbolic PyTorch: runs a model's Python on tensors that have a shape and a size but no numbers.

What a rank launches, in which order, and which memory is alive at each moment follow from the same
rules as in PyTorch: operators launch kernels on streams, autograd nodes keep what backward needs and
run in reverse order of creation, and a tensor's memory is freed when Python drops the last reference.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.torch.recorder import BACKWARD, Recorder, Shared

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prestep.workloads.exchanges.torch_context import Ring
    from prestep.workloads.job.pytorch import PyTorch
    from prestep.workloads.megatron.adapter import Pair
    from prestep.workloads.parallel.group import Group
    from prestep.workloads.sharding.course import ModuleHooks
    from prestep.workloads.torch.adapter import LowRank
    from prestep.workloads.torch.low_rank import FourBits

with lazily():
    from prestep.workloads.operators import copies, pointwise

Backward = Callable[["Tensor"], "list[Tensor | None]"]
#: Types of symbolic numbers by the bytes of an element.
DTYPES = {1: "fp8_e4m3", 2: "bf16", 4: "fp32", 8: "int64"}


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
        self.seq, self.layer, self.captured = seq, layer, captured
        self.edges, self.backward = edges, backward
        self.hooks: list[Callable[[], None]] = []


class Tensor:
    """Shape and element size over a storage; a leaf with ``requires_grad`` is a parameter."""

    __slots__ = (
        "dtype",
        "grad",
        "is_view",
        "itemsize",
        "name",
        "node",
        "offset",
        "on_grad",
        "requires_grad",
        "shape",
        "storage",
        "stored",
        "strides",
        "whole",
    )

    def __init__(
        self,
        storage: Storage | None,
        shape: tuple[int, ...],
        itemsize: int = 2,
        node: Node | None = None,
    ) -> None:
        self.storage, self.node = storage, node
        self.shape, self.itemsize = shape, itemsize
        self.stored = itemsize  # bytes of an element as the optimizer keeps it
        self.requires_grad = node is not None
        self.is_view = False
        self.grad: Tensor | None = None
        self.on_grad: Callable[[Tensor], None] | None = None
        self.name = ""
        self.dtype = ""  # "": the number of its size
        self.strides: tuple[int, ...] = ()  # in elements; (): it is contiguous
        self.offset = 0  # where it begins in its storage, in elements
        self.whole: tuple[int, ...] = ()  # of a shard: what it is a part of

    def moved(self) -> Tensor:
        """The same value, which leaves no memory behind here."""
        taken, self.storage = Tensor(self.storage, self.shape, self.itemsize), None
        return taken

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def operand(self) -> Operand:
        """The tensor as operations name it."""
        dtype = self.dtype or DTYPES[self.itemsize]
        return Operand(dtype, self.shape, self.strides)

    @property
    def size(self) -> float:
        """Bytes."""
        return float(self.elements * self.itemsize)

    @property
    def stored_size(self) -> float:
        """Bytes of a parameter, and of its gradient, as the optimizer keeps it."""
        return float(self.elements * self.stored)

    def view(self, *shape: int) -> Tensor:
        """The same storage and history with another shape (no kernel)."""
        t = Tensor(self.storage, shape, self.itemsize, self.node)
        t.requires_grad = self.requires_grad
        t.offset, t.dtype = self.offset, self.dtype
        t.is_view = self.is_view or shape != self.shape
        if shape == self.shape:
            t.strides = self.strides
        return t


Edge = Node | Tensor


class Tape(Recorder):
    """Records the program of one rank while symbolic PyTorch code runs on it.

    Attributes
    ----------
    grad_enabled : bool
        Operators give their results a history.
    hooked : str
        What the host spends on a tensor that is saved where the program hooks those; "": nothing.
    products : str
        Type in which linear layers of blocks compute; "": 16 bits.
    compiles : bool
        Feed-forward networks beside and of grouped experts are compiled.
    adapters : dict
        Low-rank adapters by the weight that they are beside.
    pairs : dict
        The same of Megatron's layers.
    four_bits : dict
        Forms of weights that are kept in four bits.
    packed : int, optional
        Tokens of a document, where attention sees no other of its sample.
    deterministic, fills : bool
        Sums have one order; new memory is filled (`Tape.empty`).
    last_quantized : int, optional
        The last block that does; None: all do.
    choices : PyTorch, optional
        The trainer's; None: the defaults.
    heads : Group, optional
        Ranks that exchange heads for tokens around attention.
    ring : Ring, optional
        Ranks whose keys and values go around in attention.
    deferred : list, optional
        Weight gradients that are put off (zero-bubble schedules); None: none are.
    hooks : ModuleHooks, optional
        What an engine hangs on every module; None: nothing.
    widened : callable, optional
        Called with a parameter that is stored wider than products take it, as its gradient becomes as wide.
    chosen : Tensor, optional
        Places of the keys that the last indexer chose.
    retained : list
        With these the graph, and so what it saved, stays alive.
    compiled : dict
        Regions that were compiled, by what they depend on.
    tables : dict
        Tables of cosines and sines.
    reads : dict
        Parameters by name: the first operation that may read them, the one behind all that earlier nodes launched.
    """

    #: Whether operations are noted to be compiled, and nothing is launched.
    traces = False
    #: Whether forward runs again in backward of what is compiled.
    repeats = False

    def __init__(self, rank: int, shared: Shared, costs: dict[str, float]) -> None:
        super().__init__(rank, shared, costs)
        self.grad_enabled, self.hooked = True, ""
        self.products, self.plain, self.itemsize = "", "", 2
        self.compiles = self.deterministic = self.fills = False
        self.adapters: dict[Tensor, LowRank] = {}
        self.pairs: dict[Tensor, Pair] = {}
        self.four_bits: dict[Tensor, FourBits] = {}
        self.packed: int | None = None
        self.last_quantized: int | None = None
        self.choices: PyTorch | None = None
        self.heads: Group | None = None
        self.ring: Ring | None = None
        self.deferred: list[Callable[[], None]] | None = None
        self.hooks: ModuleHooks | None = None
        self.widened: Callable[[Tensor], None] | None = None
        self.chosen: Tensor | None = None
        self.retained: list[Backward] = []
        self.compiled: dict[Hashable, Hashable] = {}
        self.reads: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        self.tables: dict[Hashable, Tensor] = {}
        self._seq = self._launched = 0

    def products_of(self, layer: int) -> str:
        """Type in which the linear layers of a block compute; -1 is outside the blocks."""
        last = self.last_quantized
        quantized = layer >= 0 and (last is None or layer <= last)
        return self.products if quantized else ""

    @property
    def written_out(self) -> bool:
        """Whether layers are Hugging Face's, which run operator by operator."""
        return self.choices is not None and self.choices.modules == "transformers"

    def by_liger(self, part: str) -> bool:
        """Whether a part of the model is one of Liger's kernels."""
        return self.choices is not None and part in self.choices.liger

    def call(
        self, parameters: Sequence[Tensor], x: Tensor, run: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Runs a module that has these parameters itself, inside the hooks that an engine hung on it."""
        if self.hooks is None:
            return run(x)
        hooks = self.hooks
        return self.call_by_name(parameters, lambda: run(hooks.take(parameters, x)))

    def call_by_name(
        self, parameters: Sequence[Tensor], run: Callable[[], Tensor]
    ) -> Tensor:
        """The same of a module whose input is no tensor with a gradient, or passed by name: hooks do not see it."""
        if self.hooks is None:
            return run()
        self.hooks.enter(parameters)
        return self.hooks.leave(parameters, run())

    def documents(self, batch: int, tokens: int) -> tuple[int, int]:
        """Samples, and tokens of each, that attention sees: documents where several are packed into a sample."""
        if self.packed is None:
            return batch, tokens
        from prestep.workloads.packing import pieces  # few samples are packed

        return pieces(batch, tokens, self.packed)

    def once(self, x: Tensor, make: Callable[[], Tensor], way: Hashable = "") -> Tensor:
        """What a layer makes of a value in some way; a compiler finds it equal for all layers."""
        return make()

    def postpone(self, call: Callable[[Tape], object], name: str) -> None:
        """Leaves to each run of a compiled region what no compiler touches, where the tape ``traces`` one."""
        raise TypeError(f"{name}: this tape runs what it is asked for at once")

    def note(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], name: str = ""
    ) -> None:
        """Takes the kernels launched since the last operator for one that reads and writes these, as it ``traces``."""
        raise TypeError(f"{name}: this tape runs what it is asked for at once")

    # -- memory ---------------------------------------------------------------------------------
    def table(self, name: str, shape: tuple[int, ...], itemsize: int) -> Tensor:
        """A table that the model has, the same one whoever reads it; what it takes in memory is not counted."""
        made = Tensor(None, shape, itemsize)
        return self.tables.setdefault((name, shape, itemsize), made)

    def empty(
        self, shape: tuple[int, ...], itemsize: int = 2, owner: str = "activations"
    ) -> Tensor:
        """A new tensor of its own memory."""
        n = prod(shape)
        if self.fills and n and owner == "activations":
            self.cpu("elementwise_nograd")
            self.launch(Kernel("aten fill", (n,), bytes=float(n * itemsize)))
        return Tensor(Storage(self.memory, n * itemsize, owner), shape, itemsize)

    def parameter(self, *shape: int, itemsize: int = 0, name: str = "") -> Tensor:
        """A new parameter, of the size that the tape's numbers have if nothing is said."""
        size = itemsize or self.itemsize
        wide = self.choices is not None and self.choices.master_weights
        p = self.empty(shape, max(size, 4) if wide else size, "parameters")
        p.requires_grad, p.name, p.itemsize = True, name, size
        return p

    # -- autograd -------------------------------------------------------------------------------
    def recompute(self, forward: Callable[[], Tensor]) -> Tensor:
        """Runs a region again, up to its last saved tensor (torch.utils.checkpoint's early stop); it has no result."""
        out = forward()
        out.storage = None
        self.forget()
        return out

    def apply(self, out: Tensor, inputs: list[Tensor], backward: Backward) -> Tensor:
        """Gives ``out`` a history: ``backward`` maps its gradient to the gradients of ``inputs``."""
        before, self._launched = self._launched, self.issued
        wanted = any(t.requires_grad for t in inputs)
        if not self.grad_enabled or not wanted:
            # Hooks see what the nodes of a checkpointed region save, which keep nothing.
            out.requires_grad = wanted and bool(self.hooked)
            return out
        for parameter in (t for t in inputs if t.requires_grad and t.node is None):
            self.reads.setdefault(parameter.name, before)
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
        run = _pass_from(root.node, grad)
        del grad, root
        outer = self.layer, self.captured, self.phase
        self.phase = BACKWARD
        while run.ready:
            _, node = heapq.heappop(run.ready)
            self.layer, self.captured = node.layer, node.captured
            grads = self._gradients(node, run.buffers.pop(node, None))
            if self.deferred:  # nodes above the first weight are not reachable from it: PyTorch frees them
                self.retained.append(node.backward)
            node.backward = _released
            self._hand_over(node, grads, run)
            node.edges = []
        self.layer, self.captured, self.phase = outer

    def _gradients(self, node: Node, grad: Tensor | None) -> list[Tensor | None]:
        """Gradients of a node's inputs."""
        for hook in node.hooks:
            hook()
        return node.backward(grad) if grad is not None else [None] * len(node.edges)

    def _hand_over(self, node: Node, grads: list[Tensor | None], run: _Pass) -> None:
        """Sends gradients along a node's edges; each is dropped here before the next is sent."""
        for i, edge in enumerate(node.edges):
            grad, grads[i] = grads[i], None
            if edge is None:
                continue
            if grad is not None:
                self._merge(run.buffers, edge, grad)
            grad = None
            if run.has_all(edge) and isinstance(edge, Tensor):
                # Those of all uses of a leaf are there: its hook fires once.
                whole = run.buffers.pop(edge, None)
                if whole is not None:
                    self.accumulate(edge, whole)
                whole = None
                self.writes[edge.name] = self.issued

    def _merge(self, buffers: dict[Edge, Tensor], edge: Edge, grad: Tensor) -> None:
        """Adds a gradient to those that a node or a leaf got before; another may wait with the same memory."""
        before = buffers.pop(edge, None)
        others = [grad, *buffers.values()]
        buffers[edge] = grad if before is None else self._sum(before, grad, others)

    def _sum(self, one: Tensor, other: Tensor, others: Sequence[Tensor] = ()) -> Tensor:
        """The sum, in the first one's memory unless it is a view or ``others`` have it (can_accumulate_inplace)."""
        taken = one.is_view or any(x.storage is one.storage for x in others)
        own = not others or not (taken or self.traces)
        y = one if own else self.empty(one.shape, one.itemsize)
        y.strides, y.dtype = one.strides, one.dtype
        other_operand = replace(other.operand, shape=one.shape)
        sums = (
            f"aten.add{'_' * own}.Tensor",
            (one.operand, other_operand),
            (),
            (y.operand,),
        )
        self.operate(Operation(*sums), pointwise.elementwise, (one, other), (y,))
        return y

    def accumulate(self, leaf: Tensor, grad: Tensor) -> None:
        """AccumulateGrad: takes the first gradient over, adds later ones in place, then calls the hook."""
        if leaf.name != "detached":
            self.cpu("accumulate_grad")
        # A parameter without memory is a shard elsewhere, where its gradient is cast.
        if leaf.stored > grad.itemsize and leaf.storage is not None:
            grad = self._widen(leaf, grad)
        if leaf.grad is None:
            leaf.grad = grad
            if (
                leaf.name != "detached"
                and grad.storage is not None
                and grad.storage.owner == "activations"
            ):
                grad.storage.change_owner("gradients")
        else:
            self._sum(leaf.grad, grad)
        del grad
        if leaf.on_grad is not None:
            leaf.on_grad(leaf)

    def _widen(self, leaf: Tensor, grad: Tensor) -> Tensor:
        """A gradient in the type in which its parameter is stored."""
        wide = self.empty(grad.shape, leaf.stored)
        own = ("dtype", DTYPES[leaf.stored]), ("layout", "torch.strided")
        both = (grad.operand,), own, (wide.operand,)
        cast = Operation("aten._to_copy.default", *both)
        self.operate(cast, copies.copy)
        if self.widened is not None:
            self.widened(leaf)
        return wide

    def saves(self, tensors: int = 1) -> None:
        """A node is about to save so many tensors."""
        if tensors and self.hooked:
            self.cpu(self.hooked, tensors)
        if tensors:
            super().saves()

    def saved_by(self, hook: str) -> AbstractContextManager[None]:
        """Tensors that are saved here are hooked (`hooked`)."""
        return self.temporarily(hooked=hook)

    def no_grad(self) -> AbstractContextManager[None]:
        """Operators give their results no history here."""
        return self.temporarily(grad_enabled=False)


@dataclass
class _Pass:
    """A backward pass: gradients that nodes and leaves still wait for, the sum of those they got, and what is ready.

    `ready` is a heap of nodes by latest creation.
    """

    pending: dict[Edge, int]
    buffers: dict[Edge, Tensor]
    ready: list[tuple[int, Node]]

    def has_all(self, edge: Edge) -> bool:
        """Whether a node or a leaf that has been sent one of its gradients waits for none any more."""
        self.pending[edge] -= 1
        if self.pending[edge]:
            return False
        if isinstance(edge, Node):
            heapq.heappush(self.ready, (-edge.seq, edge))
        return True


def _pass_from(root: Node, grad: Tensor) -> _Pass:
    """A backward pass that begins at a node."""
    todo, pending = [root], dict[Edge, int]()
    while todo:
        for edge in todo.pop().edges:
            if isinstance(edge, Node) and edge not in pending:
                todo.append(edge)
            if edge is not None:
                pending[edge] = pending.get(edge, 0) + 1
    return _Pass(pending, {root: grad}, [(-root.seq, root)])


def _released(grad: Tensor) -> list[Tensor | None]:
    raise RuntimeError("backward through the same node twice")
