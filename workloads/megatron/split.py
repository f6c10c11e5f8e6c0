"""Backward passes in two halves, and passes of two microbatches at once: what zero-bubble schedules and DualPipe run.

The gradient of a layer's input is what the stage before waits for; the gradients of its weights can come later
(Qi et al. 2023, arXiv 2401.10241; WeightGradStore of Megatron's zero-bubble fork and of DeepSeek's DualPipe).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sim.graph.opgraph import COMM, KERNEL, OpGraph, Program
from workloads.megatron.passes import Build, Pass, Run, forward, made, part
from workloads.torch.recorder import Shared
from workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True, eq=False)
class Halves:
    """Backward as two passes; ``held`` bytes stay from the first to the second, ``transient`` as in a unit."""

    input: Pass
    weights: Pass
    held: float
    transient: float


def halves(
    name: str,
    tape: Callable[[], Tape],
    build: Build,
    run: Run,
    shape: tuple[int, ...],
    recompute: bool,
) -> Halves:
    """Runs a module forward and backward with its weight gradients put off, and cuts what it issued in two."""
    t, _, x, y, before = forward(tape, build, run, shape)
    ahead, stash, output = t.issued, t.memory.now - before, y.size
    shape_out = y.shape
    t.phase, t.deferred = 1, []
    t.backward(y, Tensor(None, shape_out))
    later, t.deferred = t.deferred, None
    t.retained = []  # Megatron keeps what the products need, not the graph
    transient = max(0.0, t.memory.peak - before - stash)
    y.node = x.grad = None
    del y
    held, cut = max(0.0, t.memory.now - before), t.issued
    for launch in later:
        launch()
    del later
    whole = t.program()
    first = part(whole, 0 if recompute else ahead, cut)
    if recompute:
        stash, transient = output, transient + stash
    weights = made(f"{name} weight gradient", part(whole, cut, len(whole)), t.shared)
    return Halves(
        made(f"{name} input gradient", first, t.shared), weights, held, transient
    )


def joint(first: Pass, second: Pass) -> Pass:
    """One pass of two microbatches: the second's computation follows the first's, communication of both runs beside."""
    shared = Shared()
    shared.rendezvous.comms = [*first.graph.comms, *second.graph.comms]
    one = _moved(first.graph, shared, 0, 0, 0)
    other = _moved(
        second.graph, shared, len(one), len(one.parts), len(first.graph.comms)
    )
    both = made(f"{first.name} and {second.name}", _joined(one, other), shared)
    return replace(both, first=first.first, host=first.host + second.host)


def _moved(graph: OpGraph, shared: Shared, ops: int, parts: int, comms: int) -> Program:
    """A graph's program with its indices as in a larger graph, behind so many operations, parts and rendezvous."""
    p = graph.programs[0]
    kernels = np.array([shared.kernel(k) for k in graph.kernels], dtype=np.int64)
    streams = np.array([shared.stream(name) for name in graph.streams], dtype=np.int64)
    payload = np.where(p.kind == COMM, p.payload + parts, p.payload)
    computes = p.kind == KERNEL
    if computes.any():
        payload[computes] = kernels[p.payload[computes]]
    return replace(
        p,
        stream=streams[p.stream],
        payload=payload,
        parts=tuple(tuple(c + comms for c in part) for part in p.parts),
        deps=tuple(tuple(d + ops for d in dep) for dep in p.deps),
    )


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
