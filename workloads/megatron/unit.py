"""Units of a model: a layer's forward and backward pass, recorded once on a tape of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sim.costs.kernel import Kernel
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

    @property
    def launches(self) -> int:
        """Operations that the host launches for it."""
        return self.graph.operations

    def chains(self, times: int) -> tuple[Chain, Chain]:
        """The two kernels that stand for ``times`` repetitions: the same two whenever asked."""
        if times not in self.known:
            self.known[times] = (Chain(self.name, self.graph, times, False), Chain(self.name, self.graph, times, True))
        return self.known[times]


@dataclass(frozen=True)
class Again:
    """What of a unit's forward pass runs again in backward.

    ``full``: all of it, from its input; ``products``: every other product and what is no product, where attention's and
    the others' results are kept (torchtitan's selective checkpointing by operator). ``early``: not what comes after the
    last product's input, which nothing in backward needs.
    """

    full: bool = False
    products: bool = False
    early: bool = False

    def __bool__(self) -> bool:
        return self.full or self.products

    def dropped(self) -> Callable[[Kernel], bool]:
        """Which kernels of the forward pass are not repeated, asked in their order."""
        seen = 0

        def drop(kernel: Kernel) -> bool:
            nonlocal seen
            product = kernel.kind.startswith("gemm")
            seen += product
            return "attention" in kernel.kind or (product and seen % 2 == 1)

        return drop if self.products else lambda kernel: False


NEVER = Again()


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
    run: Callable[[Tape, Module, Tensor], Tensor], shape: tuple[int, ...], recompute: Again,
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
    shortened = recompute.products or (recompute.full and recompute.early)
    if shortened:
        _repeat(t, run, module, shape, recompute)
    t.phase = 1
    t.backward(y, Tensor(None, y.shape))
    whole, shared = t.program(), t.shared
    transient = max(0.0, t.memory.peak - before - stash)
    ahead, back = part(whole, 0, cut), part(whole, cut, len(whole))
    if shortened:
        ahead, back = part(whole, 0, cut), part(whole, cut, len(whole))
        stash, transient = (output, transient + stash) if recompute.full else (stash, transient)
    elif recompute:
        back = part(whole, 0, len(whole))
        stash, transient = output, transient + stash
    counts: dict[str, int] = {}
    for p in module.parameters:
        counts[p.name] = counts.get(p.name, 0) + p.elements
    return Unit(
        name, made(f"{name} forward", ahead, shared), made(f"{name} backward", back, shared), stash, transient, counts,
        lambda: halves(name, tape, build, run, shape, recompute.full),
    )  # fmt: skip


def _repeat(
    t: Tape, run: Callable[[Tape, Module, Tensor], Tensor], module: Module, shape: tuple[int, ...], again: Again
) -> None:
    """The forward pass once more in front of the backward pass, as far as it is needed."""
    x, before = Tensor(None, shape), t.issued
    t.drop = again.dropped()
    with t.no_grad():
        run(t, module, x)
    t.drop = None
    if again.early:
        t.forget_after_last("gemm", before)


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
