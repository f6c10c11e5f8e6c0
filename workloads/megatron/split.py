"""Backward passes in two halves, and passes of two microbatches at once: what zero-bubble schedules and DualPipe run.

The gradient of a layer's input is what the stage before waits for; the gradients of its weights can come later
(Qi et al. 2023, arXiv 2401.10241; WeightGradStore of Megatron's zero-bubble fork and of DeepSeek's DualPipe).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sim.graph.opgraph import COMM, KERNEL, Program
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
    parts: list[tuple[int, ...]] = []
    columns: dict[str, list[np.ndarray]] = {}
    deps: tuple[tuple[int, ...], ...] = ()
    for graph, passed in ((first.graph, 0), (second.graph, len(first.graph.comms))):
        p, here = graph.programs[0], len(deps)
        kernels = np.array([shared.kernel(k) for k in graph.kernels], dtype=np.int64)
        streams = np.array(
            [shared.stream(name) for name in graph.streams], dtype=np.int64
        )
        payload = np.where(p.kind == COMM, p.payload + len(parts), p.payload)
        if (p.kind == KERNEL).any():
            payload[p.kind == KERNEL] = kernels[p.payload[p.kind == KERNEL]]
        parts += [tuple(c + passed for c in part) for part in p.parts]
        deps += tuple(tuple(d + here for d in dep) for dep in p.deps)
        for key, values in (
            ("kind", p.kind),
            ("stream", streams[p.stream]),
            ("payload", payload),
            ("phase", p.phase),
            ("layer", p.layer),
            ("microbatch", p.microbatch),
        ):
            columns.setdefault(key, []).append(values)
    one, other = first.graph.programs[0], second.graph.programs[0]
    column = {key: np.concatenate(both) for key, both in columns.items()}
    program = Program(
        one.rank,
        column["kind"],
        column["stream"],
        column["payload"],
        np.zeros(len(deps)),
        deps,
        column["phase"],
        column["layer"],
        column["microbatch"],
        tuple(parts),
        (*one.names, *other.names),
    )
    both = made(f"{first.name} and {second.name}", program, shared)
    return replace(both, first=first.first, host=first.host + second.host)
