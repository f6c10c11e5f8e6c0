"""Backward passes in two halves, and passes of two microbatches at once: what zero-bubble schedules and DualPipe run.

The gradient of a layer's input is what the stage before waits for; the gradients of its weights can come later
(Qi et al. 2023, arXiv 2401.10241; WeightGradStore of Megatron's zero-bubble fork and of DeepSeek's DualPipe).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from prestep.sim.graph.opgraph import COMM, KERNEL, OpGraph, Program
from prestep.workloads.megatron.passes import (
    Pass,
    Source,
    forward,
    graph_of,
    part,
    pass_of,
)
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True, eq=False)
class Halves:
    """Backward as two passes; ``held`` bytes stay from the first to the second, ``transient`` as in a unit."""

    input: Pass
    weights: Pass
    held: float
    transient: float


def halves(source: Source, recompute: bool) -> Halves:
    """Runs a module forward and backward with its weight gradients put off, and cuts what it issued in two."""
    t, _, x, y, before = forward(source)
    ahead, stash = t.issued, t.memory.now - before
    products = _backward(t, y)
    transient = max(0.0, t.memory.peak - before - stash)
    if recompute:
        ahead, transient = 0, transient + stash
    y.node = x.grad = None
    del y
    held, cut = max(0.0, t.memory.now - before), t.issued
    for launch in products:
        launch()
    whole = t.program()
    inputs, weights = part(whole, ahead, cut), part(whole, cut, len(whole))
    return Halves(
        pass_of(f"{source.name} input gradient", inputs, t.shared),
        pass_of(f"{source.name} weight gradient", weights, t.shared),
        held,
        transient,
    )


def _backward(t: Tape, y: Tensor) -> list[Callable[[], None]]:
    """Runs backward without the products that make weight gradients, and returns those."""
    products: list[Callable[[], None]] = []
    t.phase, t.deferred = 1, products
    t.backward(y, Tensor(None, y.shape))
    t.deferred = None
    t.retained = []  # Megatron keeps what the products need, not the graph
    return products


def joint(first: Pass, second: Pass) -> Pass:
    """One pass of two microbatches: the second's computation follows the first's, communication of both runs beside.

    Where the host waits for the GPU in either, it does once, at the end: from one such wait to the next it launches
    all of both.
    """
    ahead, behind = first.uncut, second.uncut
    shared, comms = Shared(), ahead.comms
    shared.rendezvous.comms = [*comms, *behind.comms]
    one = _moved(ahead, shared, 0, 0, 0)
    other = _moved(behind, shared, len(one), len(one.parts), len(comms))
    graph = graph_of(_joined(one, other), shared)
    host = sum(part.host for part in (*first.parts, *second.parts))
    name = f"{first.name} and {second.name}"
    return Pass(name, graph, first.first, host, first.stops or second.stops)


def _moved(graph: OpGraph, shared: Shared, ops: int, parts: int, comms: int) -> Program:
    """A graph's program with its indices as in a larger graph, behind so many operations, parts and rendezvous."""
    p = graph.programs[0]
    streams = np.array([shared.stream(name) for name in graph.streams], dtype=np.int64)
    payload = np.where(p.kind == COMM, p.payload + parts, p.payload)
    return replace(
        p,
        stream=streams[p.stream],
        payload=_with_kernels(payload, p, graph, shared),
        parts=_behind(p.parts, comms),
        deps=_behind(p.deps, ops),
    )


def _with_kernels(
    payload: np.ndarray, p: Program, graph: OpGraph, shared: Shared
) -> np.ndarray:
    """The payload with the numbers that kernels have in the larger graph."""
    kernels = np.array([shared.kernel(k) for k in graph.kernels], dtype=np.int64)
    computes = p.kind == KERNEL
    if computes.any():
        payload[computes] = kernels[p.payload[computes]]
    return payload


def _behind(
    rows: tuple[tuple[int, ...], ...], offset: int
) -> tuple[tuple[int, ...], ...]:
    """Indices that count from an offset."""
    return tuple(tuple(index + offset for index in row) for row in rows)


def _joined(one: Program, other: Program) -> Program:
    """The operations of both, without times of the host."""

    def both(column: str) -> np.ndarray:
        return np.concatenate([getattr(one, column), getattr(other, column)])

    return Program(
        one.rank,
        both("kind"),
        both("stream"),
        both("payload"),
        host=np.zeros(len(one) + len(other)),
        deps=one.deps + other.deps,
        phase=both("phase"),
        layer=both("layer"),
        microbatch=both("microbatch"),
        parts=one.parts + other.parts,
        names=(*one.names, *other.names),
    )
