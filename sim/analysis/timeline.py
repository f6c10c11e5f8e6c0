"""What happened when: one row per span of work on a stream of a rank, as columns.

A span is one kernel, communication or copy on a GPU stream, or a stretch of work of the host thread.
Columns are numpy arrays; texts are stored once each with a code per row, as in an Arrow dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.errors import PrestepError

TEXT = "text"

#: Column -> numpy type, or TEXT. Times in seconds, sizes in bytes.
SPANS: dict[str, str] = {
    "rank": "int32",
    "stream": TEXT,  # "compute", "dp", ..., "host"
    "kind": TEXT,  # one of KINDS
    "name": TEXT,
    "phase": TEXT,  # forward, backward, optimizer, ..., or io, dataload, checkpoint (see sim.analysis.metrics)
    "axis": TEXT,  # "", dp, tp, pp, cp, ep
    "group": TEXT,  # ranks of the communication, as `group_text` writes them
    "step": "int16",
    "microbatch": "int16",  # -1: none
    "layer": "int16",  # -1: none
    "start": "float64",
    "end": "float64",
    "launch": "float64",  # when the host launched it; nan: not known
    "ready": "float64",  # communication: when all ranks had arrived and bytes began to move; else start
    "op": "int64",  # operation of the graph; -1: none
    "bytes": "float64",  # communication and copies: payload in the convention of nccl-tests
    "flops": "float64",
    "channels": "int16",
}
#: Between an axis and the name of a row of layers: what these wait for on it.
EXCHANGES = " exchanges of "
COMMUNICATION = ("collective", "send", "recv", "sendrecv")
#: Streams of a save after the last step: what training waits for, and what is written beside the steps that follow.
SAVE, WRITER = "checkpoint", "checkpoint writer"
KINDS = ("kernel", *COMMUNICATION, "copy", "host")
REQUIRED = ("rank", "stream", "kind", "name", "start", "end")
_DEFAULTS: dict[str, Any] = {
    "phase": "",
    "axis": "",
    "group": "",
    "step": 0,
    "microbatch": -1,
    "layer": -1,
    "launch": np.nan,
    "op": -1,
    "bytes": 0.0,
    "flops": 0.0,
    "channels": 0,
}


@dataclass(frozen=True)
class Words:
    """A text column: `words[codes[i]]` is the text of row i."""

    codes: np.ndarray
    words: tuple[str, ...]

    def array(self) -> np.ndarray:
        """Texts as an array of objects."""
        texts: np.ndarray = np.array(self.words, dtype=object)[self.codes]
        return texts


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans of a run. Index it by column name for a numpy array; make one with `Timeline.build`."""

    columns: Mapping[str, np.ndarray | Words]

    @classmethod
    def build(cls, **columns: Any) -> Timeline:
        """A timeline from columns: arrays, lists, scalars for all rows, and for texts also `Words`.

        Raises
        ------
        PrestepError
            If a column is unknown or missing, lengths differ, or a kind is not one of KINDS.
        """
        _check_names(columns)
        length = _length(columns)
        filled = {**_DEFAULTS, "ready": columns["start"], **columns}
        made = {
            name: _column(name, kind, filled[name], length)
            for name, kind in SPANS.items()
        }
        timeline = cls(made)
        _check_kinds(timeline.words("kind"))
        return timeline

    def __len__(self) -> int:
        return len(self["start"])

    def __getitem__(self, column: str) -> np.ndarray:
        found = self.columns[column]
        return found.array() if isinstance(found, Words) else found

    def words(self, column: str) -> Words:
        """A text column in coded form."""
        found = self.columns[column]
        if not isinstance(found, Words):
            raise PrestepError(f"timeline: {column} is not a text column")
        return found

    def matches(self, column: str, *words: str) -> np.ndarray:
        """Which rows have one of `words` in a text column (bool per row)."""
        coded = self.words(column)
        return np.isin(
            coded.codes, [i for i, word in enumerate(coded.words) if word in words]
        )

    def select(self, rows: np.ndarray) -> Timeline:
        """The rows of a mask or an index, in its order."""
        return Timeline(
            {
                name: Words(c.codes[rows], c.words) if isinstance(c, Words) else c[rows]
                for name, c in self.columns.items()
            }
        )

    def of_rank(self, rank: int) -> Timeline:
        return self.select(self["rank"] == rank)

    def of_step(self, step: int) -> Timeline:
        return self.select(self["step"] == step)

    def window(self, start: float, end: float) -> Timeline:
        """Spans that reach into [start, end), whole."""
        return self.select((self["end"] > start) & (self["start"] < end))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(int(r) for r in np.unique(self["rank"]))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(int(s) for s in np.unique(self["step"]))

    @classmethod
    def concatenate(cls, timelines: Iterable[Timeline]) -> Timeline:
        """Rows of all timelines, one after the other."""
        parts = list(timelines)
        if not parts:
            return cls.build(**dict.fromkeys(REQUIRED, ()))
        return cls.build(**{name: _concatenated(name, parts) for name in SPANS})


def _concatenated(name: str, parts: Sequence[Timeline]) -> np.ndarray | Words:
    """A column of all parts; texts keep their codes, which are renumbered once a word and not once a row."""
    if SPANS[name] != TEXT:
        return np.concatenate([part[name] for part in parts])
    numbers: dict[str, int] = {}
    codes = []
    for words in (part.words(name) for part in parts):
        renumbered = [numbers.setdefault(word, len(numbers)) for word in words.words]
        codes.append(np.asarray(renumbered, dtype=np.int32)[words.codes])
    return Words(np.concatenate(codes), tuple(numbers))


def group_text(ranks: Sequence[int]) -> str:
    """Ranks of a group in short: `0-3`, `0-12:4` (every fourth), or `0,1,5`."""
    listed = [int(r) for r in ranks]
    stride = listed[1] - listed[0] if len(listed) > 2 else 0
    if stride < 1 or listed != list(range(listed[0], listed[-1] + 1, stride)):
        return ",".join(map(str, listed))
    return f"{listed[0]}-{listed[-1]}" + (f":{stride}" if stride > 1 else "")


def group_ranks(text: str) -> tuple[int, ...]:
    """Inverse of `group_text`.

    Raises
    ------
    PrestepError
        If `text` is not a list of ranks.
    """
    try:
        if "-" not in text:
            return tuple(int(part) for part in text.split(",") if part)
        bounds, _, stride = text.partition(":")
        first, last = bounds.split("-")
        return tuple(range(int(first), int(last) + 1, int(stride or 1)))
    except ValueError:
        raise PrestepError(
            f'timeline: group: found "{text}", expected ranks such as 0-3, 0-12:4 or 0,1,5'
        ) from None


def _check_names(columns: Mapping[str, Any]) -> None:
    if unknown := sorted(set(columns) - set(SPANS)):
        listed, known = ", ".join(unknown), ", ".join(SPANS)
        raise PrestepError(f"timeline: unknown columns {listed}; known: {known}")
    if missing := [name for name in REQUIRED if name not in columns]:
        raise PrestepError(f"timeline: missing columns {', '.join(missing)}")


def _check_kinds(kinds: Words) -> None:
    in_use = {kinds.words[code] for code in np.unique(kinds.codes)}
    if strange := sorted(in_use - set(KINDS)):
        listed, expected = ", ".join(strange), ", ".join(KINDS)
        raise PrestepError(
            f"timeline: kind: found {listed}, expected one of {expected}"
        )


def _length(columns: Mapping[str, Any]) -> int:
    """Rows of the columns; those that are one value for all rows have none of their own."""
    lengths = {
        name: len(value.codes if isinstance(value, Words) else value)
        for name, value in columns.items()
        if isinstance(value, Words) or _is_sequence(value)
    }
    if len(set(lengths.values())) > 1:
        raise PrestepError(f"timeline: columns of different lengths: {lengths}")
    return next(iter(lengths.values()), 1)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, list):  # of which numpy would make an array to say so
        return True
    return not isinstance(value, str) and np.ndim(value) > 0


def _column(name: str, kind: str, value: Any, length: int) -> np.ndarray | Words:
    if kind != TEXT:
        made = np.array(np.broadcast_to(np.asarray(value, dtype=kind), (length,)))
        made.setflags(write=False)
        return made
    if isinstance(value, Words):
        return Words(np.asarray(value.codes, dtype=np.int32), tuple(value.words))
    if isinstance(value, str):
        return Words(np.zeros(length, np.int32), (value,))
    # Codes in the order of first appearance: no sorting of long object arrays, and the same words every time.
    seen: dict[str, int] = {}
    codes = np.fromiter(
        (seen.setdefault(str(word), len(seen)) for word in value),
        np.int32,
        count=len(value),
    )
    return Words(codes, tuple(seen))
