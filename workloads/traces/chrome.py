"""Typed decoding of Chrome trace JSON: only what a replay needs is ever made into objects.

A file that fits is decoded at once; a larger one in pieces cut between events, so that memory stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prestep.sim.errors import InputError
from prestep.workloads.traces import files

Number = int | float | str
# Larger files, uncompressed, are read in pieces; a piece is decoded whole. Small pieces stay in the processor's cache
# and reuse their memory: 200 MB take a third less time than at once, and a sixth of the memory.
WHOLE = 1 << 25
PIECE = 1 << 24
# Where an event seems to end, and how far from the end of a piece it is looked for; decoding confirms it.
_BETWEEN, TAIL = re.compile(rb"\}(?=\s*,\s*\{)"), 1 << 16
_OPEN = re.compile(rb'"traceEvents"\s*:\s*\[')


class Args(msgspec.Struct, gc=False):
    """Arguments of an event; names as Kineto writes them."""

    external: Any = msgspec.field(default=None, name="External id")
    external_old: Any = msgspec.field(default=None, name="external id")
    correlation: Number | None = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    name: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    inputs: Any = msgspec.field(default=None, name="In msg nelems")
    outputs: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Any = msgspec.field(default=None, name="Seq")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    sync_kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    wait_on: Any = msgspec.field(default=None, name="wait_on_stream")
    record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class Event(msgspec.Struct, gc=False):
    """One event of a Chrome trace."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Number | None = None
    dur: Number | None = None
    args: Args | None = None


class Head(msgspec.Struct):
    """What stands beside the events."""

    base: Any = msgspec.field(default=0, name="baseTimeNanoseconds")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")


class Whole(Head):
    """A whole file with an object at its root."""

    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


_DECODE = msgspec.json.Decoder(Whole)
_DECODE_LIST = msgspec.json.Decoder(list[Event])


def read(path: Path, whole: int = WHOLE) -> tuple[Head, Iterator[list[Event]]]:
    """Head and events, in one or more lists.

    Raises
    ------
    InputError
        For damage: no JSON, JSON that ends early, events that are no events.
    """
    if _size(path) <= whole:
        return _at_once(path)
    pieces = _streamed(path)
    head = next(pieces)
    if not isinstance(head, Head):
        raise TypeError("the first piece is the head")
    return head, (piece for piece in pieces if not isinstance(piece, Head))


def _size(path: Path) -> int:
    # Traces shrink 12 to 25 times; a guess is enough to choose how to read.
    return path.stat().st_size * (20 if files.is_gzip(path) else 1)


def _at_once(path: Path) -> tuple[Head, Iterator[list[Event]]]:
    data = files.content(path)
    try:
        if data[:4096].lstrip()[:1] == b"[":
            return Head(), iter([_DECODE_LIST.decode(data)])
        whole = _DECODE.decode(data)
        return whole, iter([whole.events])
    except msgspec.ValidationError:
        return _lenient(path, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(path, error) from None


def _lenient(path: Path, data: bytes) -> tuple[Head, Iterator[list[Event]]]:
    """Events of unusual types, one by one; those that are none at all are left to the reader to count."""
    try:
        root = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(path, error) from None
    events = root.get("traceEvents") if isinstance(root, dict) else root
    if not isinstance(events, list):
        raise InputError.of(
            str(path), "traceEvents", type(events).__name__, "a list of events"
        )
    head = (
        Head()
        if isinstance(root, list)
        else msgspec.convert({k: root[k] for k in root if k != "traceEvents"}, Head)
    )
    return head, iter([[_event(e) for e in events]])


def _event(raw: Any) -> Event:
    if not isinstance(raw, dict):
        return Event()
    args = raw.get("args")
    kept = (
        {k: v for k, v in args.items() if k not in ("Input Dims", "Input type")}
        if isinstance(args, dict)
        else {}
    )
    try:
        event = msgspec.convert({k: v for k, v in raw.items() if k != "args"}, Event)
        event.args = msgspec.convert(kept, Args)
    except msgspec.ValidationError:
        return Event()
    return event


def _broken(path: Path, error: Exception) -> InputError:
    hint = "was the run ended while it wrote?"
    found = files.json_damage(error)
    return InputError.of(str(path), "", found, "a whole Chrome trace", hint)


def _streamed(path: Path) -> Iterator[Head | list[Event]]:
    """The head, then lists of events, without ever holding the file."""
    pending, started = b"", False
    for piece in files.pieces(path, PIECE):
        pending += piece
        if not started:
            at = _OPEN.search(pending)
            start = at.end() if at else len(pending) - len(pending.lstrip()) + 1
            if at is None and pending.lstrip()[:1] != b"[":
                if len(pending) > 4 * PIECE:
                    raise InputError.of(
                        str(path), "traceEvents", "no such key", "a Chrome trace"
                    )
                continue
            yield _head_before(pending[: at.start()]) if at else Head()
            pending, started = pending[start:], True
        events, cut, ended = _whole_events(path, pending)
        if cut:
            yield events
            pending = pending[cut:].lstrip(b" \r\n\t,")
        if ended:
            return
    raise _broken(path, EOFError("truncated"))


def _whole_events(path: Path, pending: bytes) -> tuple[list[Event], int, bool]:
    """The whole events at the beginning of `pending`, how long they are, and whether the list ends with them."""
    start = max(0, len(pending) - TAIL)
    ends = (
        [start + found.end() for found in _BETWEEN.finditer(pending[start:])]
        if len(pending) >= PIECE
        else []
    )
    for cut in ends[:-3:-1]:
        with suppress(
            msgspec.DecodeError
        ):  # also a ValidationError: what is unusual is looked at below
            return _DECODE_LIST.decode(b"[" + pending[:cut] + b"]"), cut, False
    cut, ended = _last_event(pending)
    return _decode_part(path, pending[:cut]) if cut else [], cut, ended


def _decode_part(path: Path, part: bytes) -> list[Event]:
    data = b"[" + part.strip(b" \r\n\t,") + b"]"
    try:
        return _DECODE_LIST.decode(data)
    except msgspec.ValidationError:
        return [_event(e) for e in msgspec.json.decode(data)]
    except msgspec.DecodeError as error:
        raise _broken(path, error) from None


def _head_before(text: bytes) -> Head:
    try:
        return msgspec.json.decode(text.rstrip().rstrip(b",") + b"}", type=Head)
    except msgspec.DecodeError:
        return Head()


def _last_event(data: bytes) -> tuple[int, bool]:
    """End of the last whole event in `data`, which starts between events; and whether the list ends in it."""
    array = np.frombuffer(data, np.uint8)
    marks = _brackets(array)
    opening = (array[marks] == ord("{")) | (array[marks] == ord("["))
    depth = np.cumsum(np.where(opening, 1, -1))
    closed = np.flatnonzero(depth < 0)
    if len(closed):
        marks, depth = marks[: closed[0]], depth[: closed[0]]
    ends = marks[depth == 0]
    return (int(ends[-1]) + 1 if len(ends) else 0), bool(len(closed))


def _brackets(array: np.ndarray) -> np.ndarray:
    """Places of the brackets and braces that stand outside of texts."""
    quotes = np.flatnonzero(array == ord('"'))
    if len(quotes):
        quotes = quotes[_unescaped(array, quotes)]
    marked = np.zeros(len(array), bool)
    for mark in b"{}[]":
        marked |= array == mark
    marks = np.flatnonzero(marked)
    before = np.searchsorted(quotes, marks)
    before &= 1  # in place: where texts are full of brackets, each such array is as large as the text
    return np.asarray(marks[before == 0])


def _unescaped(array: np.ndarray, quotes: np.ndarray) -> np.ndarray:
    """Which quotes are not written with a backslash: an even number of them stands before."""
    good = np.ones(len(quotes), bool)
    for i in np.flatnonzero((quotes > 0) & (array[quotes - 1] == ord("\\"))):
        at, count = int(quotes[i]) - 1, 0
        while at >= 0 and array[at] == ord("\\"):
            at, count = at - 1, count + 1
        good[i] = count % 2 == 0
    return good
