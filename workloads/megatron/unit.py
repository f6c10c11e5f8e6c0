"""Units of a model: a layer's forward and backward pass, recorded once on a tape of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sim.opgraph import Chain, OpGraph, Program
from workloads.megatron.split import Halves, graph_of, halves
from workloads.tape import Shared, Tape, Tensor

if TYPE_CHECKING:
    from workloads.transformer import Module


@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a unit: its operations on one rank, and the host's time for the first and for all, s."""

    name: str
    graph: OpGraph
    first: float
    host: float

    known: dict[int, tuple[Chain, Chain]] = field(default_factory=dict)

    def chains(self, times: int) -> tuple[Chain, Chain]:
        """The two kernels that stand for ``times`` repetitions: the same two whenever asked."""
        if times not in self.known:
            self.known[times] = (Chain(self.name, self.graph, times, False), Chain(self.name, self.graph, times, True))
        return self.known[times]


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer: both passes, and its bytes: ``stash`` kept from forward to backward, ``transient`` above that at most.

    ``parameters`` counts this rank's parameters by name.
    """

    name: str
    forward: Pass
    backward: Pass
    stash: float
    transient: float
    parameters: dict[str, int]
    split: Callable[[], Halves] | None = None

    @cached_property
    def halves(self) -> Halves:
        """Backward in two halves, recorded when first wanted."""
        if self.split is None:
            raise RuntimeError(f"{self.name} was not recorded to be split")
        return self.split()


def record(
    name: str, tape: Callable[[], Tape], build: Callable[[Tape], Module],
    run: Callable[[Tape, Module, Tensor], Tensor], shape: tuple[int, ...], recompute: bool,
) -> Unit:  # fmt: skip
    """Runs a module forward and backward on a fresh tape and cuts what it issued in two.

    With ``recompute`` only the input is kept, and backward begins with forward again.
    """
    t = tape()
    module = build(t)
    before = t.memory.now
    t.memory.reset_peak()
    x = Tensor(None, shape)
    x.requires_grad, x.name = True, "detached"
    y = run(t, module, x)
    cut, stash = t.issued, t.memory.now - before
    output = y.size
    t.phase = 1
    t.backward(y, Tensor(None, y.shape))
    whole, shared = t.program(), t.shared
    transient = max(0.0, t.memory.peak - before - stash)
    ahead, back = part(whole, 0, cut), part(whole, cut, len(whole))
    if recompute:
        back = part(whole, 0, len(whole))
        stash, transient = output, transient + stash
    counts: dict[str, int] = {}
    for p in module.parameters:
        counts[p.name] = counts.get(p.name, 0) + p.elements
    return Unit(
        name, made(f"{name} forward", ahead, shared), made(f"{name} backward", back, shared), stash, transient, counts,
        lambda: halves(name, tape, build, run, shape, recompute),
    )  # fmt: skip


def part(p: Program, first: int, last: int) -> Program:
    """Operations [first, last) of a program by themselves: what lies before them has ended."""
    deps = tuple(tuple(d - first for d in dep if d >= first) for dep in p.deps[first:last])
    cut = slice(first, last)
    return replace(
        p, kind=p.kind[cut], stream=p.stream[cut], payload=p.payload[cut], host=p.host[cut], deps=deps,
        phase=p.phase[cut], layer=p.layer[cut], microbatch=p.microbatch[cut], names=p.names[cut],
    )  # fmt: skip


def made(name: str, program: Program, shared: Shared) -> Pass:
    """A pass of recorded operations; their host times are kept apart."""
    host = program.host
    graph = graph_of(replace(program, host=np.zeros(len(program))), shared)
    return Pass(name, graph, float(host[0]) if len(host) else 0.0, float(host.sum()))
