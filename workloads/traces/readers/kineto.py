"""Reads traces of the PyTorch profiler (Kineto's Chrome JSON), of any age since 2021.

Root an object or a list, numbers as numbers or strings, categories "kernel" or "Kernel", with or without
`distributedInfo`, metadata of collectives and `cuda_sync` events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.job.limits import RANKS
from prestep.workloads.traces import chrome
from prestep.workloads.traces.chrome import Args, Event
from prestep.workloads.traces.collectives import communication, metadata
from prestep.workloads.traces.columns import NONE, Columns
from prestep.workloads.traces.files import integer, number, time, uncollected
from prestep.workloads.traces.kernels import size
from prestep.workloads.traces.linked import Companion, link
from prestep.workloads.traces.operators import Meta, Operators
from prestep.workloads.traces.schema import Recording, dropped_of
from prestep.workloads.traces.steps import NAMED, PROFILED

GPU = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "memcpy": "memcpy",
    "memset": "memset",
}
RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime")
OPERATORS = ("cpu_op", "operator", "user_annotation")
SYNCS = re.compile(
    r"(Stream|Event|Device|Ctx)Synchronize$|^(cuda|hip)Memcpy$|^(cuda|hip)(Free|Malloc)$|^cu(Memcpy)"
)
WAITS, RECORDS = re.compile(r"StreamWaitEvent"), re.compile(r"EventRecord(WithFlags)?$")
LAUNCHES = re.compile(r"Launch|Memcpy|Memset|MemPrefetch")
GRADIENT = "torch::autograd::AccumulateGrad"
#: The name of a process whose events are those of a rank, in files of several ranks.
RANK = re.compile(r"rank (\d{1,7})")


def sniff(head: bytes) -> bool:
    """Whether a file begins like a Chrome trace."""
    text = head.lstrip()[:65536]
    return (
        text[:1] == b"{"
        and (b'"traceEvents"' in text or b'"schemaVersion": 1,' in text)
    ) or (text[:1] == b"[" and b'"ph"' in text)


def read(path: Path, companion: Companion | None = None) -> Recording:
    """The recording of one rank; with the execution trace of the same run, also what that knows of its operators.

    Raises
    ------
    InputError
        For files that are damaged or hold no event with a time or several ranks, and execution traces of another run.
    """
    recordings = read_all(path, companion)
    if len(recordings) > 1:
        found, expected = f"{len(recordings)} ranks", "a file of one rank"
        raise InputError.of(str(path), "traceEvents", found, expected)
    return recordings[0]


def read_all(path: Path, companion: Companion | None = None) -> list[Recording]:
    """The recordings of all ranks in a file: those of its processes that are named "rank N", else one.

    Raises
    ------
    InputError
        As `read` does.
    """
    with uncollected():
        head, parts = chrome.read(path)
        builders = _builders(parts, _groups(_distributed(head)))
        busy = [
            (rank, builder)
            for rank, builder in builders
            if len(builder.rows) or builder.unused_operators
        ]
        if not busy:
            raise InputError.of(
                str(path), "traceEvents", "no event with a time", "a trace with events"
            )
        if companion is not None:
            for _, builder in busy:
                builder.link(companion, str(path))
        return [builder.finish(str(path), head, rank) for rank, builder in busy]


def _builders(
    parts: Iterable[list[Event]], groups: dict[str, tuple[int, ...]]
) -> list[tuple[int | None, _Builder]]:
    """(rank, its events) of every process that is named after a rank, where there are several; else (None, all)."""
    whole, ranks, by_process = _Builder(groups), dict[Any, int](), dict[Any, _Builder]()
    for part in parts:
        ranks |= _ranks_of_processes(part)  # files that name processes do so first
        if len(ranks) < 2:
            whole.add(part)
            continue
        events: dict[Any, list[Event]] = {}
        for event in part:
            events.setdefault(event.pid, []).append(event)
        for process in ranks.keys() & events.keys():
            by_process.setdefault(process, _Builder(groups)).add(events[process])
    if by_process:
        return [(ranks[process], builder) for process, builder in by_process.items()]
    return [(None, whole)]


def _ranks_of_processes(events: Iterable[Event]) -> dict[Any, int]:
    """Process -> rank, of events that name a process "rank N"."""
    names = {
        event.pid: RANK.fullmatch(str(event.args.name))
        for event in events
        if event.ph == "M" and event.name == "process_name" and event.args is not None
    }
    return {process: int(match[1]) for process, match in names.items() if match}


class _Builder:
    """Collects rows; what no row is made of is counted."""

    def __init__(self, groups: dict[str, tuple[int, ...]]) -> None:
        self.groups = groups
        self.rows, self.operators = Columns(), Operators()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.repaired: Counter[str] = Counter()
        self.unused_operators = 0

    def add(self, events: list[Event]) -> None:
        """Sorts events into rows, operators and what is left out."""
        unused: Counter[Any] = Counter()
        for event in events:
            if event.ph != "X":
                unused["", event.cat or event.ph] += 1
                continue
            category = _category(event.cat) if isinstance(event.cat, str) else ""
            if category in OPERATORS:
                self._operator(event)
            elif category in GPU:
                self._work(event, GPU[category])
            elif category in RUNTIME:
                self._call(event)
            elif category == "cuda_sync":
                self._recorded_wait(event)
            else:
                unused["X", category] += 1
        self.rows.pack()
        for (phase, what), count in unused.items():
            self.dropped[str(what), "not used" if phase else "no span"] += count

    def _operator(self, event: Event) -> None:
        name = str(event.name)
        self.unused_operators += 1
        kind, args = _operator_kind(name, event.cat), event.args
        if args is None:
            if kind:
                self._row(event, kind, number(event.tid), name)
            return
        external = integer(args.external, args.external_old)
        meta = metadata(args, self.groups) if args.collective is not None else None
        if kind:
            self._operator_row(event, kind, name, args, meta)
        if external is not None:
            self.operators.add(external, name, bytes(args.dims), bytes(args.types))
            if meta is not None:
                self.operators.meta[external] = meta

    def _operator_row(
        self, event: Event, kind: str, name: str, args: Args, meta: Meta | None
    ) -> None:
        """Adds a row for an operator that has one of its own: a step, a gradient, or communication."""
        own = None if kind == "step" else (name, bytes(args.dims), bytes(args.types))
        thread = number(event.tid)
        row = self._row(event, kind, thread, name, external=_external(args), own=own)
        if row >= 0 and meta is not None:
            self.rows.meta[row] = meta

    def _work(self, event: Event, kind: str) -> None:
        """Adds a row for a kernel or a copy on a GPU."""
        name = str(event.name)
        args = event.args or _NOTHING
        device = number(args.device if args.device is not None else event.pid)
        stream = number(args.stream if args.stream is not None else event.tid)
        row = self._span(event, kind, _on(device, stream), name, args)
        if row >= 0 and kind == "kernel" and args.collective is not None:
            meta = metadata(args, self.groups)
            if meta is not None:
                self.rows.meta[row] = meta

    def _call(self, event: Event) -> None:
        """Adds a row for a CUDA call, if a replay has a use for it."""
        name = str(event.name)
        kind = call_kind(name)
        if kind:
            args = event.args or _NOTHING
            self._span(event, kind, number(event.tid), name, args)
        else:
            self.dropped[f"call {name}", "no launch, wait or synchronisation"] += 1

    def _span(self, event: Event, kind: str, stream: int, name: str, args: Args) -> int:
        size = float(args.bytes) if isinstance(args.bytes, int | float) else 0.0
        correlation = integer(args.correlation, None) or -1
        return self._row(
            event,
            kind,
            stream,
            name,
            external=_external(args),
            correlation=correlation,
            size=size,
        )

    def _recorded_wait(self, event: Event) -> None:
        """A `cuda_sync` event says which stream waits for which event; the call of the same correlation waits."""
        name = str(event.name)
        args = event.args or _NOTHING
        if "Wait" not in str(args.sync_kind or name):
            self.dropped["cuda_sync", "the call is there too"] += 1
            return
        target, record = integer(args.wait_on, None), integer(args.record, None)
        if target is None or record is None or args.stream is None:
            self.dropped["cuda_sync", "does not say which stream waits for which"] += 1
            return
        device = number(args.device if args.device is not None else event.pid)
        self._row(
            event,
            "wait",
            _on(device, number(args.stream)),
            name,
            correlation=integer(args.correlation, None) or -1,
            own=("cuda_sync", b"", b""),
            target=_on(device, target),
            sequence=record,
        )

    def _row(
        self, event: Event, kind: str, stream: int, name: str, **columns: Any
    ) -> int:
        """Adds a row; its place, or -1 if the event has no time."""
        start, duration = time(event.ts), time(event.dur)
        if start is None or duration is None:
            self.dropped[str(event.cat), "no time"] += 1
            return -1
        if duration < 0:
            self.repaired["negative duration taken as 0"] += 1
            duration = 0.0
        return self.rows.add(kind, name, stream, start, start + duration, **columns)

    def link(self, companion: Companion, path: str) -> None:
        """Takes shapes, and data that goes between streams, from an execution trace of the same run."""
        linked = link(companion, self.rows, self.operators, path)
        self.repaired["operators linked with an execution trace"] += linked

    def finish(self, path: str, head: chrome.Head, rank: int | None) -> Recording:
        """Names operators and collectives, and makes times relative; `rank`, where the file's head does not say it."""
        distributed = _distributed(head)
        rank = number(distributed.get("rank"), -1) if rank is None else rank
        if not -1 <= rank < RANKS:
            expected = f"a rank below {RANKS}"
            raise InputError.of(path, "distributedInfo.rank", str(rank), expected)
        self.dropped[
            "operator", "only its name and shapes are kept, with what it launched"
        ] = self.unused_operators
        first = self.rows.first
        table = self.rows.table(self.operators, rank, first, communication, size)
        return Recording(
            path,
            "kineto",
            rank,
            world=number(distributed.get("world_size"), 0),
            origin=number(head.base, 0) + round(first * 1e3),
            device=_device(head.devices),
            nccl=str(distributed.get("nccl_version") or ""),
            groups=self.groups,
            spans=table,
            dropped=dropped_of(self.dropped, rank),
            repaired=dict(self.repaired),
        )


_NOTHING = Args()


@cache
def _category(text: str) -> str:
    return text.lower()


@cache
def _operator_kind(name: str, category: str) -> str:
    """Kind of the row of an operator; empty if it has none of its own."""
    annotation = category.lower() == "user_annotation"
    if name.startswith(PROFILED) or (annotation and NAMED.match(name)):
        return "step"
    if name == GRADIENT:
        return "gradient"
    talks = name.startswith(("record_param_comms", "nccl:", GRADIENT))
    return "communication" if talks else ""


def _external(args: Args) -> int:
    external = integer(args.external, args.external_old)
    return NONE if external is None else external


def _distributed(head: chrome.Head) -> dict[str, Any]:
    return head.distributed if isinstance(head.distributed, dict) else {}


@cache
def call_kind(name: str) -> str:
    """Kind of the span of a CUDA call; empty if a replay has no use for it."""
    if SYNCS.search(name):
        return "sync"
    if WAITS.search(name):
        return "wait"
    if RECORDS.search(name):
        return "record"
    return "launch" if LAUNCHES.search(name) else ""


def _on(device: int, stream: int) -> int:
    """A stream of a device as one number."""
    return (device % (1 << 20) << 32) + stream % (1 << 32)


def _groups(distributed: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = {}
    entries = distributed.get("pg_config")
    for entry in entries if isinstance(entries, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(isinstance(r, int) for r in ranks):
            groups[str(entry.get("pg_name"))] = tuple(ranks)
    return groups


def _device(devices: Any) -> str:
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first.get("name") or "") if isinstance(first, dict) else ""
