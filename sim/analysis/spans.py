"""The timeline of a run: one span for every kernel and communication of every simulated rank and step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.analysis.timeline import SPANS, TEXT, Timeline, Words, group_text
from sim.engine.execution import Run
from sim.graph.opgraph import COMM, PHASES_COMMUNICATION, SYNC, Comm, OpGraph, Program


def timeline_of(graph: OpGraph, run: Run) -> Timeline:
    """All spans of all simulated ranks and steps."""
    parts = [_rank_spans(graph, run, i, p) for i, p in enumerate(graph.programs)]
    return parts[0] if len(parts) == 1 else Timeline.concatenate(parts)


class _Content(NamedTuple):
    """What a span shows beside its times: the columns of the timeline that depend on the operation's payload."""

    kind: str
    phase: str
    axis: str = ""
    group: str = ""
    bytes: float = 0.0
    flops: float = 0.0
    channels: int = 0


def _rank_spans(graph: OpGraph, run: Run, index: int, p: Program) -> Timeline:
    """Spans of one rank, step by step; waits of the host are none."""
    ops = np.flatnonzero(p.kind != SYNC)
    texts, numbers = _columns(graph, run, p, ops.tolist())
    numbers |= {"microbatch": p.microbatch[ops], "layer": p.layer[ops], "op": ops}
    steps = run.steps
    return Timeline.build(
        rank=np.full(len(ops) * steps, p.rank),
        step=np.repeat(np.arange(steps), len(ops)),
        **{name: _words(values, steps) for name, values in texts.items()},
        **{name: np.tile(np.asarray(v), steps) for name, v in numbers.items()},
        **_times(run, index, ops),
    )


def _columns(
    graph: OpGraph, run: Run, p: Program, ops: list[int]
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """(columns of texts, columns of numbers) of one step."""
    contents = [_content(graph, run, p, op) for op in ops]
    texts = {
        "stream": [graph.streams[p.stream[op]] for op in ops],
        "name": [p.names[op] for op in ops],
    }
    numbers: dict[str, Any] = {}
    for field in _Content._fields:
        column = texts if SPANS[field] == TEXT else numbers
        column[field] = [getattr(content, field) for content in contents]
    return texts, numbers


def _words(texts: list[str], steps: int) -> Words:
    """Texts of one step, for every step."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    coded = np.asarray([codes[text] for text in texts])
    return Words(np.tile(coded, steps), tuple(codes))


def _times(run: Run, index: int, ops: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of times of a rank's operations, in seconds of the run."""
    ready = run.start[index].copy()
    for op, time in run.ready[index].items():
        ready.flat[op] = time
    columns = {
        "launch": run.launch[index],
        "start": run.start[index],
        "ready": ready,
        "end": run.end[index],
    }
    return {name: times[:, ops].ravel() for name, times in columns.items()}


def _content(graph: OpGraph, run: Run, p: Program, op: int) -> _Content:
    payload = int(p.payload[op])
    if p.kind[op] == COMM:
        return _communication(graph, run, p.rank, p.parts[payload])
    kernel = graph.kernels[payload]
    phase = graph.phases[p.phase[op]]
    return _Content("kernel", phase, bytes=kernel.bytes, flops=kernel.flops)


def _communication(
    graph: OpGraph, run: Run, rank: int, parts: tuple[int, ...]
) -> _Content:
    """A collective, or transfers that were issued together; these show the axis and the group of the first."""
    first = graph.comms[parts[0]]
    return _Content(
        kind=_kind(first, rank, len(parts)),
        phase=graph.phases[PHASES_COMMUNICATION],
        axis=first.axis,
        group=group_text(first.groups[0]),
        bytes=sum(graph.comms[part].size for part in parts),
        channels=run.plans[parts[0]].channels,
    )


def _kind(comm: Comm, rank: int, transfers: int) -> str:
    if comm.op != "send":
        return "collective"
    if transfers > 1:
        return "sendrecv"
    sender = comm.groups[0][0]
    return "send" if sender == rank else "recv"
