"""Regions of symbolic PyTorch under ``torch.compile``: traced once, compiled once, launched whenever they run.

What AOTAutograd and Inductor make of a region says ``prestep.workloads.fusion``. Each of its graphs is one autograd
node, whose gradients come together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from prestep.workloads.fusion.joint import Function, compile_function
from prestep.workloads.fusion.lifetimes import CALL, Issue, issues
from prestep.workloads.host_work import extern_work
from prestep.workloads.memory.account import Storage
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.tracing import Call, TracedGraph, Tracing

Layer = Callable[[Tape, Tensor], Sequence[Tensor]]
Storages = dict[int, Storage | None]
#: Shape and bytes of an element of a tensor, its strides, and the number of its storage.
Form = tuple[tuple[int, ...], int, tuple[int, ...], int]


@dataclass(frozen=True)
class Graph:
    """A compiled graph: an autograd node.

    Attributes
    ----------
    inputs, outputs
        Keys of the values that it takes and makes, with their storages.
    parameters
        Places of its parameters among the region's.
    forward, backward
        What it launches.
    tangents
        Storages of the outputs' gradients; none of those that have no gradient.
    gradients
        What backward returns, for inputs and then parameters.
    kept
        Storages that backward finds.
    calls
        What the program does itself.
    """

    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, Form], ...]
    parameters: tuple[int, ...]
    forward: tuple[Issue, ...]
    backward: tuple[Issue, ...]
    tangents: tuple[int | None, ...]
    gradients: tuple[Form | None, ...]
    kept: frozenset[int]
    calls: Sequence[Call]

    def run(
        self, t: Tape, values: dict[int, Tensor], parameters: Sequence[Tensor]
    ) -> None:
        """Takes inputs from ``values`` and puts outputs there."""
        inputs = [values[key] for key, _ in self.inputs]
        storages: Storages = {
            number: x.storage
            for (_, number), x in zip(self.inputs, inputs, strict=True)
        }
        t.cpu("compiled_forward")
        self._issue(t, self.forward, storages)
        t.saves(len(self.kept) + len(self.parameters))
        outputs = [_tensor(form, storages) for _, form in self.outputs]
        values.update(zip((key for key, _ in self.outputs), outputs, strict=True))
        if not self.gradients:
            return
        kept = {number: storages[number] for number in self.kept}
        call = _Call(t, self, kept)
        main: Tensor | None = None
        for x, tangent in zip(outputs, self.tangents, strict=True):
            if tangent is None:
                continue
            if main is None:
                own = [parameters[place] for place in self.parameters]
                call.first = tangent
                main = t.apply(x, [*inputs, *own], call.backward)
            else:  # a further output hands its gradient over and adds nothing to the first one's
                t.apply(x, [main], partial(call.receive, tangent))

    def _issue(self, t: Tape, issues: Iterable[Issue], storages: Storages) -> None:
        with t.launching_by("compiled_launch"):
            for issue in issues:
                for number, size in issue.takes:
                    storages[number] = Storage(t.memory, size, "activations")
                for number, before in issue.reuses:
                    storages[number] = storages.pop(before)
                if issue.kernel.kind == CALL:
                    self.calls[issue.kernel.shape[0]](t)
                else:
                    t.spend(extern_work(issue.kernel, issue.name))
                    t.launch(issue.kernel, name=issue.name)
                for number in issue.drops:
                    storages.pop(number, None)


def _tensor(form: Form, storages: Storages) -> Tensor:
    shape, itemsize, strides, number = form
    x = Tensor(storages[number], shape, itemsize)
    x.strides = strides
    return x


@dataclass
class _Call:
    """A graph that has run: what its backward finds, and gradients that have arrived."""

    t: Tape
    graph: Graph
    storages: Storages
    first: int = 0

    def receive(self, tangent: int, g: Tensor) -> list[Tensor | None]:
        """Takes over the gradient of a further output."""
        self.storages[tangent] = g.storage
        return [None]

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs and then of all parameters, handed over together at the end."""
        storages, self.storages = self.storages, {}
        storages[self.first] = g.storage
        self.t.cpu("compiled_backward")
        self.graph._issue(self.t, self.graph.backward, storages)
        return [
            None if form is None else _tensor(form, storages)
            for form in self.graph.gradients
        ]


@dataclass(frozen=True)
class Region:
    """The graphs of a region, and the keys of its results; `last`: values that no graph after one needs."""

    graphs: tuple[Graph, ...]
    results: tuple[int, ...]
    last: tuple[tuple[int, ...], ...]

    def run(self, t: Tape, x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Runs the graphs one after the other."""
        values = {0: x}
        del x
        for graph, last in zip(self.graphs, self.last, strict=True):
            graph.run(t, values, parameters)
            for key in last:
                del values[key]
        return [values[key] for key in self.results]


def compile_region(
    t: Tape,
    layer: Layer,
    like: Tensor,
    parameters: Sequence[Tensor],
    cut: Callable[[Tracing], Collection[int]] | None = None,
    keeps: Callable[[Tracing], Collection[int]] | None = None,
) -> Region:
    """Traces a layer and compiles it.

    ``cut`` says at which steps a new graph begins, ``keeps`` which storages are kept while all else runs again.
    """
    cuts: Collection[int] = ()
    if cut is not None:
        cuts = cut(_traced(t, layer, like, parameters)[0])
    again = keeps is not None
    tracing, keys = _traced(t, layer, like, parameters, cuts, again)
    graphs = tuple(_graph(tracing, g, parameters, keeps) for g in tracing.graphs)
    return Region(graphs, tuple(keys), _last_uses(graphs, keys))


def _traced(
    t: Tape,
    layer: Layer,
    like: Tensor,
    parameters: Sequence[Tensor],
    cuts: Collection[int] = (),
    repeats: bool = False,
) -> tuple[Tracing, list[int]]:
    """A trace of a layer, and keys of its results."""
    storages = [p.storage for p in parameters]
    try:
        tracing = Tracing(t, like, parameters, cuts, repeats)
        return tracing, tracing.finish(layer(tracing, tracing.input))
    finally:
        for p, storage in zip(parameters, storages, strict=True):
            p.storage = storage


def _last_uses(
    graphs: Sequence[Graph], results: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    last: list[tuple[int, ...]] = []
    needed = set(results)
    for graph in reversed(graphs):
        mine = {key for key, _ in graph.inputs} | {key for key, _ in graph.outputs}
        last.insert(0, tuple(sorted(mine - needed)))
        needed |= mine
    return tuple(last)


def _graph(
    tracing: Tracing,
    traced: TracedGraph,
    parameters: Sequence[Tensor],
    keeps: Callable[[Tracing], Collection[int]] | None,
) -> Graph:
    number = tracing.number
    taken = traced.parameters.keys() | traced.gradients.keys()
    own = [p for p in parameters if p in taken]
    wanted = [traced.gradients.get(x) for x in (*traced.inputs.values(), *own)]
    inputs = {key: number(x) for key, x in traced.inputs.items()}
    outputs = list(traced.outputs.items())
    made = [g for g in wanted if g is not None]
    joint = compile_function(
        Function(
            tracing.operations,
            tracing.kernels,
            traced.forward,
            traced.backward,
            [number(x) for _, x in outputs],
            [number(g) for g in made],
            tracing.lasting,
            None if keeps is None else keeps(tracing),
        )
    )
    tangents = {key: number(g) for key, g in traced.tangents.items()}
    given, found = frozenset(inputs.values()), joint.kept | {*tangents.values()}
    donated = joint.kept - given - {*joint.results}
    forms = iter([_form(g, s) for g, s in zip(made, joint.gradients, strict=True)])
    return Graph(
        tuple(inputs.items()),
        tuple(
            (key, _form(x, s))
            for (key, x), s in zip(outputs, joint.results, strict=True)
        ),
        tuple(place for place, p in enumerate(parameters) if p in taken),
        issues(joint.forward, joint.sizes, given, {*joint.results, *joint.kept}),
        issues(joint.backward, joint.sizes, found, joint.gradients, donated),
        tuple(tangents.get(key) for key, _ in outputs),
        tuple(None if g is None else next(forms) for g in wanted) if tangents else (),
        joint.kept,
        tracing.calls,
    )


def _form(x: Tensor, storage: int) -> Form:
    return x.shape, x.itemsize, x.strides, storage
