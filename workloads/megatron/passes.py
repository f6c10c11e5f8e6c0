"""Passes: what one direction of a unit launches, and how a recorded program is cut into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from prestep.sim.graph.opgraph import KERNEL, SYNC, Chain, OpGraph, Program
from prestep.workloads.torch.again import Dropped
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.recorder import PHASES, Shared
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """What a unit is recorded from: a fresh tape, a module on it, and its forward pass from an input's shape.

    ``first``: nothing in front of it is trained, so nobody wants the gradient of its input.
    """

    name: str
    tape: Callable[[], Tape]
    build: Callable[[Tape], Module]
    run: Callable[[Tape, Module, Tensor], Tensor]
    shape: tuple[int, ...]
    first: bool = False


class Forward(NamedTuple):
    """A module that ran forward: its tape, its input and output, and the bytes held before it ran."""

    tape: Tape
    module: Module
    input: Tensor
    output: Tensor
    before: float


def forward(source: Source, results: Dropped | None = None) -> Forward:
    """Runs a module forward on a fresh tape; `results` sees its kernels."""
    t = source.tape()
    module = source.build(t)
    before = t.memory.now
    t.memory.reset_peak()
    x = Tensor(None, source.shape)
    x.requires_grad, x.name = not source.first, "detached"
    t.drop = results
    y = source.run(t, module, x)
    t.drop = None
    return Forward(t, module, x, y, before)


def _whole(first: int, last: int | None) -> Pass:
    raise NotImplementedError("passes that were joined have no parts")


@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a unit: its operations on one rank, and the host's time for the first and for all, s.

    Where the host waits for the GPU within, that is the end of one pass (``waits``) and the ``rest`` is another;
    ``whole`` has the operations of all. ``at`` has by the name of a parameter the operation that may read it first,
    or behind which its gradient is there; ``between`` makes passes from one operation to another (to the end: None).
    """

    name: str
    graph: OpGraph
    first: float
    host: float
    waits: bool = False
    rest: Pass | None = None
    whole: OpGraph | None = None
    repeated: dict[int, tuple[Chain, Chain]] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    between: Callable[[int, int | None], Pass] = _whole

    @property
    def launches(self) -> int:
        """Operations that the host launches for it."""
        return self.graph.operations

    @property
    def parts(self) -> Iterator[Pass]:
        """The passes that it consists of, between which the host waits."""
        now: Pass | None = self
        while now is not None:
            yield now
            now = now.rest

    @property
    def uncut(self) -> OpGraph:
        """Its operations with those of the rest."""
        return self.graph if self.whole is None else self.whole

    @property
    def stops(self) -> bool:
        """Whether the host waits for the GPU anywhere in it."""
        return any(part.waits for part in self.parts)

    def chains(self, times: int) -> tuple[Chain, Chain]:
        """The two kernels that stand for ``times`` repetitions: the same two whenever asked."""
        if times not in self.repeated:
            body = Chain(self.name, self.graph, times, False)
            self.repeated[times] = body, replace(body, tail=True)
        return self.repeated[times]


#: A pass that launches nothing.
NOTHING = Pass("nothing", OpGraph((), (), (), (), PHASES, {}), 0.0, 0.0)


def pass_of(
    name: str, program: Program, shared: Shared, places: dict[str, int] | None = None
) -> Pass:
    """A pass of recorded operations, cut where the host waits; their host times are kept apart."""

    @cache
    def between(first: int, last: int | None) -> Pass:
        end = len(program) if last is None else last
        return pass_of(name, part(program, first, end), shared)

    stops = np.flatnonzero(program.kind == SYNC).tolist()
    begins = part(program, 0, stops[0] if stops else len(program))
    parts = [_uncut(name, begins, shared)]
    for at, end in pairwise([*stops, len(program)]):
        # What the host spends before it waits belongs to the part before.
        parts[-1] = replace(parts[-1], host=parts[-1].host + float(program.host[at]))
        parts.append(_after_stop(name, program, (at, end), shared))
    made = parts.pop()
    while parts:
        made = replace(parts.pop(), waits=True, rest=made)
    whole = _graph(program, shared) if stops else None
    return replace(made, whole=whole, at=places or {}, between=between)


def _after_stop(
    name: str, program: Program, span: tuple[int, int], shared: Shared
) -> Pass:
    """The part of a program behind a stop, which is its first operation.

    There the host has no lead: when it comes to each launch counts, so its times are in the graph as well.
    """
    at, end = span
    launched = _uncut(name, part(program, at + 1, end), shared)
    whole = part(program, at, end)
    kernels = np.flatnonzero(whole.kind == KERNEL)
    if not len(kernels):
        return launched
    # What waited for operations before the stop waits for all of the repetition before, as the stop does.
    before = int(kernels[-1]) - len(whole)
    deps = tuple(
        (*kept, before) if any(d < at for d in given) else kept
        for kept, given in zip(whole.deps, program.deps[at:end], strict=True)
    )
    host = whole.host.copy()
    host[:2] = 0.0  # the first launch is paid for before the part begins
    graph = graph_of(replace(whole, host=host, deps=deps), shared)
    return replace(launched, graph=graph)


def _uncut(name: str, program: Program, shared: Shared) -> Pass:
    """A pass in which the host only launches."""
    host = program.host
    first = float(host[0]) if len(host) else 0.0
    return Pass(name, _graph(program, shared), first, float(host.sum()))


def _graph(program: Program, shared: Shared) -> OpGraph:
    """The operations without the host's times."""
    return graph_of(replace(program, host=np.zeros(len(program))), shared)


def part(p: Program, first: int, last: int) -> Program:
    """Operations [first, last) of a program by themselves: what lies before them has ended."""
    cut = slice(first, last)
    return replace(
        p,
        kind=p.kind[cut],
        stream=p.stream[cut],
        payload=p.payload[cut],
        host=p.host[cut],
        deps=tuple(_after(dep, first) for dep in p.deps[cut]),
        phase=p.phase[cut],
        layer=p.layer[cut],
        microbatch=p.microbatch[cut],
        names=p.names[cut],
    )


def _after(dep: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Dependencies on operations from ``first`` on, counted from there."""
    return tuple(d - first for d in dep if d >= first)


def graph_of(program: Program, shared: Shared) -> OpGraph:
    """A graph of one rank's program."""
    return shared.graph((program,), {program.rank: (program.rank,)})
