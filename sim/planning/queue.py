"""One queue of launches for all streams of a GPU (CUDA_DEVICE_MAX_CONNECTIONS=1).

An operation that waits, for its stream or for an event, holds up whatever was launched after it, on any stream. On an
H200 a product launched behind a second kernel of another stream began when that stream's first one had ended; with two
connections, or in a CUDA graph, at once (lab/cases/launch-order). Megatron keeps communications from following each
other for this reason (core/distributed/distributed_data_parallel.py).

What waits behind a transfer between two stages holds up nothing here (a guess): NCCL's buffers let a transfer end that
nobody takes yet, which is not simulated, and stages of wide groups of microbatches would wait for each other for ever.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from prestep.sim.graph.opgraph import COMM, SYNC, OpGraph, Program


def in_one_queue(graph: OpGraph) -> OpGraph:
    """The graph of which no operation begins before those that its host launched earlier."""
    between = frozenset(at for at, comm in enumerate(graph.comms) if comm.axis == "pp")
    programs = tuple(replace(p, deps=_dependencies(p, between)) for p in graph.programs)
    return replace(graph, programs=programs)


def _dependencies(
    program: Program, between: frozenset[int]
) -> tuple[tuple[int, ...], ...]:
    """Operations that have ended when each one begins: its own, and those that earlier ones begin behind."""
    streams, is_sync = program.stream.tolist(), (program.kind == SYNC).tolist()
    transfers = {
        at
        for at in np.flatnonzero(program.kind == COMM).tolist()
        if between.intersection(program.parts[program.payload[at]])
    }
    before: dict[int, int] = {}  # the last operation of a stream
    ended: dict[int, int] = {}  # the last one of a stream that has ended by now
    seen: dict[int, dict[int, int]] = defaultdict(dict)  # what a stream has waited for
    dependencies = []
    for at, (stream, own) in enumerate(zip(streams, program.deps, strict=True)):
        if is_sync[at]:  # the host's
            dependencies.append(own)
            continue
        behind = [
            op
            for other, op in ended.items()
            if other != stream and op > seen[stream].get(other, -1)
        ]
        seen[stream].update(ended)
        dependencies.append((*own, *behind))
        for op in (before.get(stream, -1), *own):
            if op >= 0 and op not in transfers:
                ended[streams[op]] = max(op, ended.get(streams[op], -1))
        before[stream] = at
    return tuple(dependencies)
