"""Spans of the last step as compact columns for the page's script: by rank and stream, alike ranks once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from prestep.sim.analysis.chain_kernels import Blocks, Chains
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.spans import Opening, columns_of
from prestep.sim.analysis.timeline import COMMUNICATION, WRITER, Timeline

MOST_RANKS = 24
MOST_SPANS = 80_000  # in the file; what is beyond is merged
ALIKE = 1e-3  # of the step: ranks whose spans lie within it are shown once
MANY_MICROBATCHES = 6  # from here on the whole step would be stripes
FINEST = 4000  # merged spans are at least this part of the step apart
#: What is said of a span beside its name and times.
FACTS = ("kind", "phase", "axis", "layer", "microbatch", "bytes", "flops", "group")

Data = dict[str, Any]


def gantt(result: Prediction) -> Data | None:
    """Rows of the picture; None without a timeline.

    ``rows`` have ``rank``, how many ranks it ``stands`` for, ``stream``, and by span: starts ``s`` (each after the one
    before), durations ``d``, waits ``w`` (all whole ns), names ``n`` and facts ``m`` (indices into the tables).
    ``opens`` is the window that is shown first, and the microbatch that it is (None: the whole step).
    ``blocks`` are those of them that are rows of layers, which the script opens by their ``patterns`` (`_blocks`).
    """
    if result.timeline is None or len(result.timeline) == 0:
        return None
    spans = _last_step(result.timeline)
    tables = _tables(spans)
    weights = _weights(result, spans)
    shown = _choose(_alike(spans, tables.length * ALIKE), spans)
    stands = _represented(shown, weights)
    room = MOST_SPANS // len(shown)
    chains = None if result.details is None else result.details.chains
    rows: list[Data] = []
    for rank in sorted(shown):
        columns = _rank_rows(spans.of_rank(rank), room, tables, chains)
        rows += [{"rank": rank, "stands": stands[rank], **row} for row in columns]
    return {
        "length": round(tables.length * 1e9),
        "rows": rows,
        "patterns": tables.shown,
        "streams": [_shown(stream) for stream in tables.streams],
        "names": list(tables.names.items),
        "facts": [list(fact) for fact in tables.facts.items],
        "opens": _opens_on(spans.of_rank(min(shown)), tables),
        "ranks": sum(weights.values()),
        "shown": sum(stands.values()),
    }


def _opens_on(spans: Timeline, tables: _Tables) -> list[int] | None:
    """From ns, to ns, number of the microbatch in the middle of a rank's step; None where there are few."""
    forward = spans.select(
        spans.matches("phase", "forward") & (spans["microbatch"] >= 0)
    )
    numbers = np.unique(forward["microbatch"])
    if len(numbers) < MANY_MICROBATCHES:
        return None
    starts = np.array(
        [forward["start"][forward["microbatch"] == n].min() for n in numbers]
    )
    order = np.argsort(starts)
    at = len(order) // 2
    begin, end = (starts[order[k]] - tables.begin for k in (at, at + 1))
    return [round(begin * 1e9), round(end * 1e9), int(numbers[order[at]])]


def _last_step(timeline: Timeline) -> Timeline:
    """The last step, and the part of a save after it that training waits for."""
    last = timeline.of_step(int(timeline.steps[-1]))
    return last.select(~last.matches("stream", WRITER))


def _rank_rows(
    spans: Timeline, room: int, tables: _Tables, chains: Chains | None
) -> Iterator[Data]:
    """A row for each stream of a rank, compute first and the host last; merged where the rank has too many spans."""
    merged = len(spans) > room
    columns = _merged if merged else _columns
    rows, opened = dict[str, Data](), set[str]()
    for stream in sorted(set(spans["stream"].tolist())):
        row = spans.select(spans.matches("stream", stream))
        row = row.select(np.argsort(row["start"], kind="stable"))
        inside = [] if merged or chains is None else _blocks(row, tables, chains)
        rows[stream] = {**columns(row, tables), "blocks": inside}
        for block in inside:
            opened |= {tables.streams[op[-1]] for op in tables.shown[block[1]]["ops"]}
    # Layers may have streams on which nothing else runs.
    empty: Data = {key: [] for key in ("s", "d", "w", "n", "m", "blocks")}
    for stream in sorted(
        rows.keys() | opened, key=lambda s: (s != "compute", s == "host", s)
    ):
        shown = {"stream": _shown(stream), "merged": merged}
        yield shown | rows.get(stream, empty)


def _blocks(row: Timeline, tables: _Tables, chains: Chains) -> list[list[Any]]:
    """Rows of layers in a row: which span, its pattern, spans behind it that are part of it, its ns, and its speeds.

    What is inside begins when the block does, and later by its pattern's clocks (ns) times the speeds.
    """
    layers = np.flatnonzero(Opening(row, chains).sizes)
    if not len(layers):
        return []
    listed, ops = list[list[Any]](), row["op"].tolist()
    rank, steps = int(row["rank"][0]), row["step"][layers]
    for rows, blocks in chains.blocks(rank, steps, row["op"][layers]):
        pattern = tables.pattern(blocks)
        lasting = _ns(blocks.end) - _ns(blocks.start)
        for block, place in enumerate(layers[rows].tolist()):
            same = takewhile(lambda op: op == ops[place], ops[place + 1 :])  # noqa: B023
            speeds = [float(f"{speed:.6g}") for speed in blocks.speeds[block]]
            waits = sum(1 for _ in same)
            listed.append([place, pattern, waits, int(lasting[block]), *speeds])
    return sorted(listed)


# Streams of transfers between stages are named by their way and by what they carry: `nccl pp from B`.
_WORDS = {"from": "recv", "to": "send", "F": "fwd", "B": "bwd"}


def _shown(stream: str) -> str:
    """The name of a stream as the timeline writes it: `nccl pp recv bwd`."""
    return " ".join(_WORDS.get(word, word) for word in stream.split(" "))


class _Table:
    """Values by the number in which they came."""

    def __init__(self) -> None:
        self.items: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.items.setdefault(value, len(self.items))


class _Tables:
    """What the rows share: when the step begins and how long it is (seconds), names and facts by number."""

    def __init__(self, begin: float, length: float) -> None:
        self.begin = begin
        self.length = length
        self.names = _Table()
        self.facts = _Table()
        self.patterns = _Table()
        self.shown: list[Data] = []  # patterns as the script reads them
        self.streams: list[str] = []  # of their operations

    def pattern(self, blocks: Blocks) -> int:
        """Number of what is in rows of layers."""
        key = blocks.chain, *blocks.groups.values()
        number = self.patterns.number(key)
        if number == len(self.shown):
            self.shown.append(self._shown(blocks))
        return number

    def _shown(self, blocks: Blocks) -> Data:
        """A repetition: of each operation its begin, end, name, facts, part and stream.

        The part is 1 of what the chain's second kernel is, 2 of what is behind it, else 0.
        """
        pattern, graph = blocks.pattern, blocks.chain.graph
        ops = pattern.ops.tolist()
        texts, numbers = columns_of(graph, pattern.run, graph.programs[0], ops)
        second = pattern.inside(replace(blocks.chain, tail=True))[0]
        begin, end, total, cut = (
            _ns(clocks).tolist()
            for clocks in (pattern.begin, pattern.end, pattern.total, pattern.cut)
        )
        listed = []
        for at, op in enumerate(ops):
            what = {key: column[at] for key, column in (texts | numbers).items()}
            where = {"layer": -1, "microbatch": -1, "group": blocks.groups.get(op, "")}
            fact = tuple((what | where)[key] for key in FACTS)
            if what["stream"] not in self.streams:
                self.streams.append(what["stream"])
            part = 1 if second[at] else 2 * int(pattern.behind[at])
            named = self.names.number(what["name"]), self.facts.number(fact)
            stream = self.streams.index(what["stream"])
            listed.append([begin[at], end[at], *named, part, stream])
        times = 0 if blocks.chain.tail else blocks.chain.times
        return {"times": times, "total": total, "cut": cut, "ops": listed}


def _tables(spans: Timeline) -> _Tables:
    begin, end = float(spans["start"].min()), float(spans["end"].max())
    return _Tables(begin, end - begin)


def _weights(result: Prediction, spans: Timeline) -> dict[int, int]:
    """How many ranks each simulated one stands for."""
    represents = {} if result.details is None else result.details.represents
    return {int(rank): len(represents.get(int(rank), (rank,))) for rank in spans.ranks}


def _alike(spans: Timeline, tolerance: float) -> dict[int, list[int]]:
    """Ranks by the first one whose operations start and end at the same times, to `tolerance` seconds."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    order = np.argsort(spans["rank"], kind="stable")
    ranks, first = np.unique(spans["rank"][order], return_index=True)
    names = spans.words("name").codes
    for rank, rows in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
        start, end = spans["start"][rows], spans["end"][rows]
        times = (
            np.round(np.array([start.sum(), end.sum()]) / max(1, len(rows)) / tolerance)
            .astype(int)
            .tolist()
        )
        groups.setdefault((names[rows].tobytes(), *times), []).append(rank)
    return {members[0]: members for members in groups.values()}


def _represented(
    groups: dict[int, list[int]], weights: dict[int, int]
) -> dict[int, int]:
    """How many ranks each group stands for."""
    return {rank: sum(weights[m] for m in members) for rank, members in groups.items()}


def _choose(groups: dict[int, list[int]], spans: Timeline) -> dict[int, list[int]]:
    """At most MOST_RANKS groups: the one that ends last, the one that ends first, and others evenly between."""
    if len(groups) <= MOST_RANKS:
        return groups
    end = {rank: float(spans["end"][spans["rank"] == rank].max()) for rank in groups}
    ordered = sorted(groups, key=lambda rank: (end[rank], rank))
    chosen = {
        ordered[round(i)] for i in np.linspace(0, len(ordered) - 1, MOST_RANKS).tolist()
    }
    return {rank: members for rank, members in groups.items() if rank in chosen}


def _columns(row: Timeline, tables: _Tables) -> Data:
    start = _ns(row["start"] - tables.begin)
    waits = np.where(
        row.matches("kind", *COMMUNICATION), _ns(row["ready"] - row["start"]), 0
    )
    values = zip(*(row[key].tolist() for key in FACTS), strict=True)
    return {
        "s": np.diff(start, prepend=0).tolist(),
        "d": (_ns(row["end"] - tables.begin) - start).tolist(),
        "w": waits.tolist() if waits.any() else [],
        "n": [tables.names.number(name) for name in row["name"].tolist()],
        "m": [tables.facts.number(value) for value in values],
    }


def _merged(row: Timeline, tables: _Tables) -> Data:
    """Neighbours of one phase and axis that lie close together as one span named by its first."""
    first, last = _neighbours(row, tables.length / FINEST)
    lead = row.select(first)
    columns = _columns(lead, tables)
    begin = _ns(lead["start"] - tables.begin)
    end = _ns(row["end"][last] - tables.begin)
    texts = [
        f"{name} and {more} more" if more else name
        for name, more in zip(
            lead["name"].tolist(), (last - first).tolist(), strict=True
        )
    ]
    names = [tables.names.number(text) for text in texts]
    return columns | {"d": (end - begin).tolist(), "n": names}


def _neighbours(row: Timeline, apart: float) -> tuple[np.ndarray, np.ndarray]:
    """First and last index of each run of spans of one phase and axis less than `apart` seconds from the next."""
    phase, axis = row.words("phase").codes, row.words("axis").codes
    start, end = row["start"], row["end"]
    changes = (np.diff(phase) != 0) | (np.diff(axis) != 0)
    gaps = (start[1:] - end[:-1] > apart) | (np.diff(start) > apart)
    first = np.concatenate([[0], np.flatnonzero(changes | gaps) + 1])
    last = np.concatenate([first[1:], [len(row)]]) - 1
    return first, last


def _ns(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
