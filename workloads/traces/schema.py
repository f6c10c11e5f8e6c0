"""One form for recorded work: an Arrow table of spans, and a table of what was left out and why.

A row is a span on a stream of a GPU or on a host thread. Times are seconds since ``Recording.origin``.

==============  =======  ========================================================================
column          type     meaning
==============  =======  ========================================================================
rank            int32    rank of the job
kind            string   one of ``KINDS``
name            string   kernel, call or step
operator        string   framework operator that launched it ("aten::mm"), empty if not known
stream          int64    GPU kinds: device * 2**32 + stream; host kinds: the thread
start, end      float64  s
bytes           float64  payload: the buffer of a collective (the large side of gathers), a copy's bytes
collective      string   all_reduce, all_gather, ... (``prestep.sim.collectives.plan.OPS``), "p2p", or empty
group           string   process group and its ranks, "0:0,1,2,3"; empty if not known
peers           string   point-to-point: "send>2:16777216;recv<0:4096", ranks of the job
sequence        int64    number of the collective in its group, -1 if not recorded
correlation     int64    ties a launch to its GPU work, -1 if none
target          int64    waits: the stream that is waited for, -1 if not recorded; records: the stream recorded
shape           string   input shapes as the trace has them
dtype           string   input types as the trace has them
==============  =======  ========================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter

import pyarrow as pa

GPU_KINDS = ("kernel", "memcpy", "memset")
HOST_KINDS = ("launch", "sync", "wait", "record")
# "data": GPU work (correlation) that needs what other work (sequence, on the stream `target`) wrote.
KINDS = (*GPU_KINDS, *HOST_KINDS, "step", "communication", "gradient", "data")

_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("kind", _WORD),
        ("name", _WORD),
        ("operator", _WORD),
        ("stream", pa.int64()),
        ("start", pa.float64()),
        ("end", pa.float64()),
        ("bytes", pa.float64()),
        ("collective", _WORD),
        ("group", _WORD),
        ("peers", _WORD),
        ("sequence", pa.int64()),
        ("correlation", pa.int64()),
        ("target", pa.int64()),
        ("shape", _WORD),
        ("dtype", _WORD),
    ]
)
DROPPED = pa.schema(
    [
        ("rank", pa.int32()),
        ("what", pa.string()),
        ("why", pa.string()),
        ("count", pa.int64()),
    ]
)


@dataclass(slots=True)
class Span:
    """A row of the table, as readers make it and as replays read it."""

    kind: str
    name: str
    stream: int
    start: float
    end: float
    operator: str = ""
    bytes: float = 0.0
    collective: str = ""
    group: str = ""
    peers: str = ""
    sequence: int = -1
    correlation: int = -1
    target: int = -1
    shape: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Recording:
    """What one rank recorded.

    Attributes
    ----------
    path : str
        File it was read from.
    format : str
        Reader that read it ("kineto").
    rank, world : int
        Rank and size of the job; -1 and 0 if the file does not say.
    origin : int
        Nanoseconds of the clock of this rank at time 0 of the table.
    device : str
        Name of the GPU ("NVIDIA H200"), empty if not known.
    nccl : str
        NCCL's version, empty if not known.
    groups : dict
        Process group -> ranks of the job.
    spans : pa.Table
        ``SCHEMA``, sorted by start.
    dropped : pa.Table
        ``DROPPED``: events that have no row, by what they are and why.
    repaired : dict
        Repairs that were made while reading, with how often.
    """

    path: str
    format: str
    rank: int
    world: int
    origin: int
    device: str
    nccl: str
    groups: dict[str, tuple[int, ...]]
    spans: pa.Table
    dropped: pa.Table
    repaired: dict[str, int] = field(default_factory=dict)

    def as_rank(self, rank: int) -> Recording:
        """The same with its rank set, where the file did not say or said something else."""
        spans, dropped = (_of_rank(table, rank) for table in (self.spans, self.dropped))
        return replace(self, rank=rank, spans=spans, dropped=dropped)

    def count(self, *kinds: str) -> int:
        """Number of rows of these kinds."""
        counted = self.spans.column("kind").value_counts().to_pylist()
        return sum(entry["counts"] for entry in counted if entry["values"] in kinds)


def _of_rank(table: pa.Table, rank: int) -> pa.Table:
    """A table with another rank in its first column."""
    column = pa.array([rank] * table.num_rows, pa.int32())
    return table.set_column(0, "rank", column)


def table_of(spans: list[Span], rank: int) -> pa.Table:
    """Arrow table of spans, sorted by start; equal starts keep their order."""
    spans = sorted(spans, key=attrgetter("start"))
    columns = [pa.array([rank] * len(spans), pa.int32())]
    for entry in list(SCHEMA)[1:]:
        values = list(map(attrgetter(entry.name), spans))
        column = (
            pa.array(values, pa.string())
            if entry.type == _WORD
            else pa.array(values, entry.type)
        )
        columns.append(column.dictionary_encode() if entry.type == _WORD else column)
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def start_at_zero(spans: Iterable[Span]) -> float:
    """Moves all times so that the first start is 0; when that was."""
    spans = list(spans)
    first = min((span.start for span in spans), default=0.0)
    for span in spans:
        span.start, span.end = span.start - first, span.end - first
    return first


def dropped_of(
    counts: Counter[tuple[str, str]] | Iterable[tuple[tuple[str, str], int]], rank: int
) -> pa.Table:
    """Table of what was left out: (what, why) -> count."""
    rows = sorted(dict(counts).items())
    return pa.table(
        {
            "rank": [rank] * len(rows),
            "what": [what for (what, _), _ in rows],
            "why": [why for (_, why), _ in rows],
            "count": [count for _, count in rows],
        },
        schema=DROPPED,
    )
