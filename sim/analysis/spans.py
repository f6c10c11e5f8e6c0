"""The timeline of a run: one span for every kernel and communication of every simulated rank and step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import (
    EXCHANGES,
    SPANS,
    TEXT,
    Timeline,
    Words,
    group_text,
)
from prestep.sim.engine.execution import Run
from prestep.sim.errors import PrestepError
from prestep.sim.graph.opgraph import (
    COMM,
    PHASES_COMMUNICATION,
    SYNC,
    Chain,
    Comm,
    OpGraph,
    Program,
)
from prestep.sim.units import count

if TYPE_CHECKING:
    from prestep.sim.analysis.chain_kernels import Blocks, Chains

#: Kernels of chains that are opened where nobody says how many: some 100 MB of a trace, which Perfetto still opens.
MOST = 100_000


def timeline_of(graph: OpGraph, run: Run) -> Timeline:
    """All spans of all simulated ranks and steps."""
    parts = [_rank_spans(graph, run, i, p) for i, p in enumerate(graph.programs)]
    parts += [
        _exchange_spans(graph, run, i, p)
        for i, p in enumerate(graph.programs)
        if run.exposed[i]
    ]
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
    texts, numbers = columns_of(graph, run, p, ops.tolist())
    numbers |= {"microbatch": p.microbatch[ops], "layer": p.layer[ops], "op": ops}
    steps = run.steps
    return Timeline.build(
        rank=np.full(len(ops) * steps, p.rank),
        step=np.repeat(np.arange(steps), len(ops)),
        **{name: _words(values, steps) for name, values in texts.items()},
        **{name: np.tile(np.asarray(v), steps) for name, v in numbers.items()},
        **_times(run, index, ops),
    )


class _Waiting(NamedTuple):
    """A stretch in which layers wait for their own exchanges along an axis."""

    step: int
    op: int
    axis: str
    start: float
    end: float
    launch: float


def _exchange_spans(graph: OpGraph, run: Run, index: int, p: Program) -> Timeline:
    """What layers wait for their own exchanges on one rank: by axis, at the end of each row of them."""
    waits = list(_waits(run, index, p))
    ops = [w.op for w in waits]
    rows = list(zip(p.payload[ops].tolist(), [w.axis for w in waits], strict=True))
    shown = {row: _exchanged(graph, p, *row) for row in dict.fromkeys(rows)}
    contents = [shown[row] for row in rows]
    names = [f"{w.axis}{EXCHANGES}{p.names[w.op]}" for w in waits]
    return Timeline.build(
        rank=p.rank,
        stream=[graph.streams[p.stream[op]] for op in ops],
        name=names,
        microbatch=p.microbatch[ops],
        layer=p.layer[ops],
        **_fields(waits, ("step", "op", "start", "end", "launch")),
        **_fields(contents, _Content._fields),
    )


def _waits(run: Run, index: int, p: Program) -> Iterator[_Waiting]:
    """Every wait of layers of one rank for their own exchanges."""
    launched, ended = (
        run.launch[index].ravel().tolist(),
        run.end[index].ravel().tolist(),
    )
    operations = len(p)
    for g, waits in run.exposed[index].items():
        now = ended[g] - sum(waits.values())
        for axis, seconds in waits.items():
            step, op = divmod(g, operations)
            yield _Waiting(step, op, axis, now, now + seconds, launched[g])
            now += seconds


def _fields(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Rows as columns."""
    return {name: list(map(attrgetter(name), rows)) for name in names}


def _exchanged(graph: OpGraph, p: Program, kernel: int, axis: str) -> _Content:
    """What a row of layers exchanges along an axis."""
    chain = graph.kernels[kernel]
    if not isinstance(chain, Chain):
        raise PrestepError(f"kernel {chain.kind}: expected a row of layers")
    comm, size = chain.exchanged(axis)
    group = graph.met(p.rank, comm)[0]
    phase = graph.phases[PHASES_COMMUNICATION]
    return _Content("collective", phase, axis, group_text(group), size)


def columns_of(
    graph: OpGraph, run: Run, p: Program, ops: list[int]
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """(columns of texts, columns of numbers) of one step."""
    contents = list(_contents(graph, run, p, ops))
    texts = {
        "stream": [graph.streams[stream] for stream in p.stream[ops].tolist()],
        "name": [p.names[op] for op in ops],
    }
    numbers: dict[str, Any] = {}
    for field, values in _fields(contents, _Content._fields).items():
        column = texts if SPANS[field] == TEXT else numbers
        column[field] = values
    return texts, numbers


def _contents(
    graph: OpGraph, run: Run, p: Program, ops: list[int]
) -> Iterator[_Content]:
    """What the span of each operation shows beside its times."""
    kernels: dict[tuple[int, int], _Content] = {}  # they come again and again
    kinds, payloads, phases = p.kind.tolist(), p.payload.tolist(), p.phase.tolist()
    for op in ops:
        key = payload, phase = payloads[op], phases[op]
        if kinds[op] == COMM:
            yield _communication(graph, run, p.rank, p.parts[payload])
            continue
        if key not in kernels:
            kernels[key] = _kernel(graph, payload, phase)
        yield kernels[key]


def _words(texts: list[str], steps: int) -> Words:
    """Texts of one step, for every step."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    coded = np.asarray([codes[text] for text in texts])
    return Words(np.tile(coded, steps), tuple(codes))


def _times(run: Run, index: int, ops: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of times of a rank's operations, in seconds of the run."""
    ready = run.start[index].copy()
    arrived = run.ready[index]
    ready.flat[list(arrived)] = list(arrived.values())
    end = run.end[index].copy()
    exposed = run.exposed[index]
    waited = [sum(waits.values()) for waits in exposed.values()]
    end.flat[list(exposed)] -= waited  # those are spans of their own
    columns = {
        "launch": run.launch[index],
        "start": run.start[index],
        "ready": ready,
        "end": end,
    }
    return {name: times[:, ops].ravel() for name, times in columns.items()}


def _kernel(graph: OpGraph, number: int, phase: int) -> _Content:
    kernel = graph.kernels[number]
    name = graph.phases[phase]
    return _Content("kernel", name, bytes=kernel.bytes, flops=kernel.flops)


def _communication(
    graph: OpGraph, run: Run, rank: int, parts: tuple[int, ...]
) -> _Content:
    """A collective, or transfers that were issued together; these show the axis and the group of the first."""
    first = graph.comms[parts[0]]
    return _Content(
        kind=_kind(first, rank, len(parts)),
        phase=graph.phases[PHASES_COMMUNICATION],
        axis=first.axis,
        group=_group(first.groups[0]),
        bytes=sum([graph.comms[part].size for part in parts]),
        channels=run.plans[parts[0]].channels,
    )


@lru_cache(maxsize=4096)
def _group(ranks: tuple[int, ...]) -> str:
    """`group_text`, remembered: the same few groups communicate all the time."""
    return group_text(ranks)


def _kind(comm: Comm, rank: int, transfers: int) -> str:
    if comm.op != "send":
        return "collective"
    if transfers > 1:
        return "sendrecv"
    sender = comm.groups[0][0]
    return "send" if sender == rank else "recv"


# -- what is in chains ------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Opening:
    """A timeline whose rows of layers can be opened into their kernels and communications."""

    timeline: Timeline
    chains: Chains

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many kernels and communications are in each span; 0: it is no row of layers."""
        sizes, ops = np.zeros(len(self.timeline), dtype=int), self.timeline["op"]
        kernels = self.timeline.matches("kind", "kernel")
        for rank in self.timeline.ranks:
            mine = np.flatnonzero(kernels & (self.timeline["rank"] == rank))
            different, which = np.unique(ops[mine], return_inverse=True)
            inside = [self.chains.size(rank, op) for op in different.tolist()]
            sizes[mine] = np.array(inside, dtype=int)[which]
        return sizes

    def opened(self, most: float) -> tuple[Timeline, str]:
        """The timeline with rows of layers opened into at most so many spans, and which they are; "": there are none.

        If all are too many, those of the last step are, of one rank in it, or of one of its microbatches.
        """
        whole = int(self.sizes.sum())
        if not whole:
            return self.timeline, ""
        for words, chosen in self._choices():
            inside = int(self.sizes[chosen].sum())
            if inside <= most:
                said = f"{words} opened into {count(inside)} of {count(whole)} kernels"
                return self._open(chosen), said
        return self.timeline, f"layers are not opened into their {count(whole)} kernels"

    def _choices(self) -> Iterator[tuple[str, np.ndarray]]:
        """(what it is, which rows), from all to few."""
        t, chosen = self.timeline, self.sizes > 0
        yield "layers are", chosen
        step = t["step"][chosen].max()
        chosen = chosen & (t["step"] == step)
        yield f"layers of step {step} are", chosen
        rank = int(t["rank"][chosen].min())
        chosen = chosen & (t["rank"] == rank)
        yield f"layers of step {step} on rank {rank} are", chosen
        several = np.unique(t["microbatch"][chosen])
        middle = int(several[len(several) // 2])
        chosen = chosen & (t["microbatch"] == middle)
        yield f"layers of microbatch {middle}, step {step}, rank {rank} are", chosen

    def _open(self, chosen: np.ndarray) -> Timeline:
        """The timeline with these rows opened; what they wait for their exchanges is where it is waited for."""
        t = self.timeline
        key = (t["rank"] * (t["step"].max() + 1) + t["step"]) * (t["op"].max() + 2)
        key += t["op"] + 1
        parts = [t.select(~np.isin(key, key[chosen]))]
        for rank in np.unique(t["rank"][chosen]).tolist():
            mine = t.select(chosen & (t["rank"] == rank))
            for rows, blocks in self.chains.blocks(rank, mine["step"], mine["op"]):
                parts.append(_kernels(mine.select(rows), blocks))
        return Timeline.concatenate(parts)


def _kernels(rows: Timeline, blocks: Blocks) -> Timeline:
    """What is in rows of one chain of a rank: every operation of every repetition."""
    places, graph = blocks.places(), blocks.chain.graph
    ops = places.ops.tolist()
    texts, numbers = columns_of(graph, blocks.pattern.run, graph.programs[0], ops)
    texts["group"] = [blocks.groups.get(op, "") for op in ops]
    same = ("rank", "step", "microbatch", "layer", "op")
    return Timeline.build(
        **{name: _words(values, len(rows)) for name, values in texts.items()},
        **{n: np.tile(np.asarray(v), len(rows)) for n, v in numbers.items()},
        **{name: np.repeat(rows[name], len(ops)) for name in same},
        start=places.start.ravel(),
        end=places.end.ravel(),
        launch=places.launch.ravel(),
    )


def with_kernels(result: Prediction, most: float = MOST) -> tuple[Prediction, str]:
    """The prediction with a timeline that has kernels in place of rows of layers, at most so many; and which, in words.

    Examples
    --------
    >>> from prestep.sim.api import simulate
    >>> with_kernels(simulate("mlp-ddp4"))[1]  # PyTorch's kernels are its timeline already
    ''
    """
    chains = None if result.details is None else result.details.chains
    if chains is None or result.timeline is None:
        return result, ""
    timeline, said = Opening(result.timeline, chains).opened(most)
    return replace(result, timeline=timeline), said
