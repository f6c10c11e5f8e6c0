"""Passes: what one direction of a unit launches, and how a recorded program is cut into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sim.graph.opgraph import Chain, OpGraph, Program
from workloads.torch.recorder import PHASES, Shared
from workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from workloads.torch.modules import Module

Build = Callable[[Tape], "Module"]
Run = Callable[[Tape, "Module", Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a unit: its operations on one rank, and the host's time for the first and for all, s."""

    name: str
    graph: OpGraph
    first: float
    host: float

    known: dict[int, tuple[Chain, Chain]] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """Operations that the host launches for it."""
        return self.graph.operations

    def chains(self, times: int) -> tuple[Chain, Chain]:
        """The two kernels that stand for ``times`` repetitions: the same two whenever asked."""
        if times not in self.known:
            self.known[times] = (
                Chain(self.name, self.graph, times, False),
                Chain(self.name, self.graph, times, True),
            )
        return self.known[times]


def forward(
    tape: Callable[[], Tape], build: Build, run: Run, shape: tuple[int, ...]
) -> tuple[Tape, Module, Tensor, Tensor, float]:
    """Runs a module forward on a fresh tape: the tape, the module, its input and output, and the bytes held before."""
    t = tape()
    module = build(t)
    before = t.memory.now
    t.memory.reset_peak()
    x = Tensor(None, shape)
    x.requires_grad, x.name = True, "detached"
    return t, module, x, run(t, module, x), before


def part(p: Program, first: int, last: int) -> Program:
    """Operations [first, last) of a program by themselves: what lies before them has ended."""
    deps = tuple(
        tuple(d - first for d in dep if d >= first) for dep in p.deps[first:last]
    )
    cut = slice(first, last)
    return replace(
        p,
        kind=p.kind[cut],
        stream=p.stream[cut],
        payload=p.payload[cut],
        host=p.host[cut],
        deps=deps,
        phase=p.phase[cut],
        layer=p.layer[cut],
        microbatch=p.microbatch[cut],
        names=p.names[cut],
    )


def made(name: str, program: Program, shared: Shared) -> Pass:
    """A pass of recorded operations; their host times are kept apart."""
    host = program.host
    graph = graph_of(replace(program, host=np.zeros(len(program))), shared)
    return Pass(name, graph, float(host[0]) if len(host) else 0.0, float(host.sum()))


def graph_of(program: Program, shared: Shared) -> OpGraph:
    """A graph of one rank's program."""
    return OpGraph(
        (program,),
        tuple(shared.kernels),
        tuple(shared.rendezvous.comms),
        tuple(shared.streams),
        PHASES,
        {program.rank: (program.rank,)},
    )
