"""What a region of symbolic PyTorch does, seen by running it once: its operations, forward and backward.

This is AOTAutograd's part of ``torch.compile``: layers run as they are written, on a tape that launches nothing and
notes which storages each operation reads and writes, and autograd runs on it. Operators whose kernels are written by
hand become opaque steps: they read their inputs and what their backward holds, and write what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import Chain
from prestep.workloads.fusion.graph import OPAQUE, Place, Step
from prestep.workloads.fusion.lifetimes import CALL
from prestep.workloads.memory.account import Storage
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import Rule
from prestep.workloads.torch.saved_tensors import tensors_of
from prestep.workloads.torch.tape import Backward, Edge, Node, Tape, Tensor

#: Name of tensors without a history of their own; key of the region's input, and who made it.
LEAF, INPUT, OUTSIDE = "detached", 0, -1
#: What a trace takes over from the tape that it is for.
SETTINGS = (
    "adapters",
    "choices",
    "four_bits",
    "heads",
    "itemsize",
    "last_quantized",
    "layer",
    "packed",
    "plain",
    "products",
    "ring",
)
Call = Callable[[Tape], object]


@dataclass
class TracedGraph:
    """A graph of a region: all of it, unless it is cut.

    Attributes
    ----------
    forward, backward
        Its steps.
    inputs
        What it reads that is no parameter, by the key of the value.
    outputs
        What later graphs or the caller take.
    parameters
        Those that it reads, in this order.
    tangents
        Gradients of the outputs, as far as they have one.
    gradients
        What its backward makes, by inputs and parameters.
    """

    forward: list[Step] = field(default_factory=list)
    backward: list[Step] = field(default_factory=list)
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    parameters: dict[Tensor, None] = field(default_factory=dict)
    tangents: dict[int, Tensor] = field(default_factory=dict)
    gradients: dict[Edge, Tensor] = field(default_factory=dict)


class Tracing(Tape):
    """A tape that notes what a region does.

    Parameters
    ----------
    t : Tape
        The tape that the region is for.
    like : Tensor
        Its input.
    parameters : sequence of Tensor
        The region's; whoever traces gives them their memory back.
    cuts : collection of int
        Places of steps at which a new graph begins.
    repeats : bool
        Whether forward runs again in backward.

    Attributes
    ----------
    operations, kernels : list
        What steps are, and what each launches without a compiler.
    calls : list
        What the program does itself, by number.
    graphs : list of TracedGraph
    input : Tensor
        What stands for the region's.
    lasting : set of int
        Storages that are there all the time: of parameters and tables.
    """

    traces = True

    def __init__(
        self,
        t: Tape,
        like: Tensor,
        parameters: Sequence[Tensor],
        cuts: Collection[int] = (),
        repeats: bool = False,
    ) -> None:
        super().__init__(t.rank, t.shared, t.costs)
        for name in SETTINGS:
            setattr(self, name, getattr(t, name))
        # Where hooks pack what nodes save, autograd records all the same.
        self.grad_enabled = t.grad_enabled or bool(t.hooked)
        self.repeats = repeats
        self.operations: list[Operation] = []
        self.kernels: list[tuple[Kernel, ...]] = []
        self.calls: list[Call] = []
        self.graphs = [TracedGraph()]
        self._cuts, self._position, self._at = set(cuts), 0, 0
        self._going_back = False
        self._numbers: dict[tuple[Operation, tuple[Kernel, ...]], int] = {}
        self._pending: list[Kernel] = []
        self._nameless: dict[int, tuple[Tensor, int]] = {}
        self._made: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._graph_of: dict[Node, int] = {}
        self._outputs_of: dict[Node, Tensor] = {}
        self._writers: dict[int, int] = {}
        for p in parameters:  # in memory, wherever they are now
            p.storage = Storage(self.memory, p.size, "parameters")
        self._parameters = {self.number(p): p for p in parameters}
        self.lasting = set(self._parameters)
        self._known = set(self._parameters)
        self.input = self._given(like)
        self._writers[self.number(self.input)] = OUTSIDE

    # -- storages -------------------------------------------------------------------------------
    def number(self, x: Tensor) -> int:
        """The number of a tensor's storage; one without memory is a table that is always there."""
        if x.storage is not None:
            return x.storage.block
        if id(x) not in self._nameless:
            table = self.empty(())
            assert table.storage is not None
            self._nameless[id(x)] = (x, table.storage.block)
            self.lasting.add(table.storage.block)
        return self._nameless[id(x)][1]

    def _given(self, like: Tensor) -> Tensor:
        """A tensor that the region gets from outside."""
        x = self.empty(like.shape, like.itemsize)
        x.strides, x.requires_grad, x.name = like.strides, like.requires_grad, LEAF
        self._known.add(self.number(x))
        return x

    def _places(self, tensors: Sequence[Tensor]) -> tuple[Place, ...]:
        return tuple((self.number(each), each.offset) for each in tensors)

    # -- steps ----------------------------------------------------------------------------------
    @property
    def graph(self) -> TracedGraph:
        """The one that steps belong to now."""
        return self.graphs[self._at]

    def operate(
        self,
        operation: Operation,
        rule: Rule,
        arguments: Sequence[object] = (),
        results: Sequence[object] = (),
        share: float = 1.0,
    ) -> None:
        kernels, _, passing = self.shared.launched(operation, rule)
        if not results:  # its tensors are told as it gets its history
            self._pending += kernels
            self.scratch(share * passing)
            return
        self._note(operation, kernels, tensors_of(arguments), tensors_of(results))

    def _note(
        self,
        operation: Operation,
        kernels: tuple[Kernel, ...],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
    ) -> None:
        key = operation, kernels
        number = self._numbers.setdefault(key, len(self.operations))
        if number == len(self.operations):
            self.operations.append(operation)
            self.kernels.append(kernels)
        step = Step(number, self._places(reads), self._places(writes))
        self._known.update(storage for storage, _ in (*step.reads, *step.writes))
        if self._going_back:
            self.graph.backward.append(step)
            return
        if self._position in self._cuts:
            self.graphs.append(TracedGraph())
            self._at += 1
        self._position += 1
        self.graph.forward.append(step)
        for each in reads:
            self._read(each)
        for storage, _ in step.writes:
            self._writers.setdefault(storage, self._at)

    def _read(self, x: Tensor) -> None:
        """Notes what a graph takes from outside: parameters, and values of earlier graphs or of the caller."""
        number, graph = self.number(x), self.graph
        if number in self._parameters:
            graph.parameters.setdefault(self._parameters[number])
        elif number in self._writers and self._writers[number] != self._at:
            self._cross(x)

    def _cross(self, x: Tensor) -> None:
        """A value that another graph made."""
        number = self.number(x)
        if self._writers[number] == OUTSIDE:
            self.graph.inputs.setdefault(INPUT, self.input)
        elif x.node is None:  # else as the operator gets its history
            self.graph.inputs.setdefault(-number, x)
            self._hand_out(x)

    # -- operators written by hand ----------------------------------------------------------------
    def cpu(self, name: str, count: float = 1.0) -> None:
        pass

    def saves(self, tensors: int = 1) -> None:
        pass

    def launch(
        self, kernel: Kernel | Chain, stream: str | None = None, name: str = ""
    ) -> int:
        assert isinstance(kernel, Kernel)
        self._pending.append(kernel)
        return 0

    def record(self, stream: str | None = None) -> tuple[int, ...]:
        return (self.shared.stream(stream),) if stream else ()

    def wait(self, event: Iterable[int], stream: str | None = None) -> None:
        """A wait for all that another stream has by then."""
        names = {number: name for name, number in self.shared.streams.items()}
        for number in event:
            wait = partial(_wait, names[number])
            if self._pending and self._pending[-1].kind == CALL:
                self.calls[-1] = partial(_one_after_other, self.calls[-1], wait)
            else:
                self.postpone(wait, "wait")

    def once(self, x: Tensor, make: Callable[[], Tensor], way: Hashable = "") -> Tensor:
        key = id(x), way
        if key not in self._made:
            self._made[key] = (
                x,
                make(),
            )  # which stays, so that no other has its identity
        return self._made[key][1]

    def postpone(self, call: Call, name: str) -> None:
        self._pending.append(Kernel(CALL, (len(self.calls),), layout=name))
        self.calls.append(call)

    def note(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], name: str = ""
    ) -> None:
        if not self._pending:
            return
        kernels, self._pending = tuple(self._pending), []
        taken = {self.number(x): x for x in reads if x.storage is not None}
        taken = {n: x for n, x in taken.items() if n in self._known}
        made = {self.number(x): x for x in writes if x.storage is not None}
        made = {n: x for n, x in made.items() if n not in self._known}
        last = kernels[-1]
        name = name or (
            last.layout if last.kind == CALL else last.kind.removeprefix("aten ")
        )
        operation = Operation(
            f"{OPAQUE}.{name}.kernels",
            tuple(x.operand for x in taken.values()),
            (),
            tuple(x.operand for x in made.values()),
        )
        self._note(operation, kernels, list(taken.values()), list(made.values()))

    # -- autograd -------------------------------------------------------------------------------
    def apply(self, out: Tensor, inputs: list[Tensor], backward: Backward) -> Tensor:
        if self._pending:
            held = tensors_of(backward)
            self.note(inputs, [out, *held])
        super().apply(out, [self._own(x) for x in inputs], backward)
        if out.node is not None:
            self._graph_of[out.node] = self._at
            self._outputs_of[out.node] = out
        return out

    def _own(self, x: Tensor) -> Tensor:
        """An input, or what stands in this graph for a value of another one."""
        if x.node is None or self._graph_of[x.node] == self._at:
            if x is self.input:
                self.graph.inputs.setdefault(INPUT, x)
            return x
        key, graph = x.node.seq, self.graph
        if key not in graph.inputs:
            leaf = Tensor(x.storage, x.shape, x.itemsize)
            leaf.strides, leaf.requires_grad, leaf.name = x.strides, True, LEAF
            graph.inputs[key] = leaf
            self._hand_out(x)
        return graph.inputs[key]

    def _hand_out(self, x: Tensor) -> int:
        """Counts a value among the outputs of the graph that makes it; its key."""
        if x is self.input:
            return INPUT
        if x.node is None:
            number = self.number(x)
            self.graphs[self._writers[number]].outputs.setdefault(-number, x)
            return -number
        key = x.node.seq
        maker = self.graphs[self._graph_of[x.node]]
        maker.outputs.setdefault(key, self._outputs_of[x.node])
        return key

    def parameters_read(self) -> Iterator[tuple[int, Tensor]]:
        """Parameters that forward reads, and the place of the step that does."""
        steps = (step for graph in self.graphs for step in graph.forward)
        for place, step in enumerate(steps):
            for storage, _ in step.reads:
                if storage in self._parameters:
                    yield place, self._parameters[storage]

    def finish(self, results: Sequence[Tensor]) -> list[int]:
        """Runs backward of every graph, from the last; keys of the region's results."""
        keys = [self._hand_out(x) for x in results]
        self._going_back = True
        for at in reversed(range(len(self.graphs))):
            self._at = at
            self._run_back(self.graph)
        return keys

    def _run_back(self, graph: TracedGraph) -> None:
        outputs = {k: x for k, x in graph.outputs.items() if x.node is not None}
        if not outputs:
            return
        for key, x in outputs.items():
            graph.tangents[key] = self._given(x)
        tangents = list(graph.tangents.values())
        root = Tensor(None, ())
        super().apply(root, list(outputs.values()), lambda _: [*tangents])
        self.backward(root, Tensor(None, ()))

    def _gradients(self, node: Node, grad: Tensor | None) -> list[Tensor | None]:
        held, memory = tensors_of(node.backward), self.memory
        memory.peak = memory.now
        grads = super()._gradients(node, grad)
        if self._pending:
            made = [g for g in grads if g is not None]
            workspace = memory.peak - memory.now
            if workspace:
                made.append(self.empty((int(workspace),), 1))
            self.note([*tensors_of(grad), *held], made)
        return grads

    def accumulate(self, leaf: Tensor, grad: Tensor) -> None:
        self._merge(self.graph.gradients, leaf, grad)


def _one_after_other(first: Call, then: Call, t: Tape) -> None:
    first(t)
    then(t)


def _wait(stream: str, t: Tape) -> None:
    t.wait(t.record(stream))
