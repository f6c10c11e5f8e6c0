"""Reads traces of the PyTorch profiler (Kineto's Chrome JSON), of any age since 2021.

Root an object or a list, numbers as numbers or strings, categories "kernel" or "Kernel", with or without
`distributedInfo`, metadata of collectives and `cuda_sync` events.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake
from workloads.traces import chrome
from workloads.traces.chrome import Args, Event
from workloads.traces.collectives import described, group_name
from workloads.traces.kernels import size
from workloads.traces.schema import Recording, Span, dropped_of, table_of

GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "memcpy": "memcpy", "memset": "memset"}
RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime")
OPERATORS = ("cpu_op", "operator", "user_annotation")
SYNCS = re.compile(r"(Stream|Event|Device|Ctx)Synchronize$|^(cuda|hip)Memcpy$|^(cuda|hip)(Free|Malloc)$|^cu(Memcpy)")
WAITS, RECORDS = re.compile(r"StreamWaitEvent"), re.compile(r"EventRecord(WithFlags)?$")
LAUNCHES = re.compile(r"Launch|Memcpy|Memset|MemPrefetch")
LARGEST = 1 << 62  # an id that the table can hold
STEP, GRADIENT = "ProfilerStep", "torch::autograd::AccumulateGrad"


def sniff(head: bytes) -> bool:
    """Whether a file begins like a Chrome trace."""
    text = head.lstrip()[:65536]
    return (text[:1] == b"{" and (b'"traceEvents"' in text or b'"schemaVersion": 1,' in text)) or (
        text[:1] == b"[" and b'"ph"' in text
    )


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises
    ------
    InputError
        For files that are damaged or hold no event with a time.
    """
    collecting = gc.isenabled()
    gc.disable()  # a million objects that all stay, and no cycles: looking for garbage would double the time
    try:
        head, parts = chrome.read(path)
        builder = _Builder()
        for part in parts:
            builder.add(part)
        if builder.first is None and not builder.unused_operators:
            raise InputError(Mistake(str(path), "traceEvents", "no event with a time", "a trace with events"))
        return builder.finish(str(path), head)
    finally:
        if collecting:
            gc.enable()


class _Builder:
    """Collects spans; times are microseconds of the file until `finish`."""

    def __init__(self) -> None:
        self.spans: list[tuple[Span, Args | None]] = []
        self.operators: dict[int, tuple[str, Args]] = {}
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.repaired: Counter[str] = Counter()
        self.first: float | None = None
        self.unused_operators = 0

    def add(self, events: list[Event]) -> None:
        """Sorts events into spans, operators and what is left out."""
        unused: Counter[Any] = Counter()
        for event in events:
            if event.ph != "X":
                unused["", event.cat or event.ph] += 1
                continue
            category = event.cat.lower() if isinstance(event.cat, str) else ""
            if category in OPERATORS:
                self._operator(event)
            elif category in GPU or category in RUNTIME or category == "cuda_sync":
                self._span(event, category)
            else:
                unused["X", category] += 1
        for (phase, what), count in unused.items():
            self.dropped[str(what), "not used" if phase else "no span"] += count

    def _operator(self, event: Event) -> None:
        name, args = event.name if isinstance(event.name, str) else str(event.name), event.args
        if name.startswith((STEP, "record_param_comms", "nccl:", GRADIENT)):
            kind = "step" if name.startswith(STEP) else "gradient" if name == GRADIENT else "communication"
            span = self._timed(event, kind, _number(event.tid))
            if span is not None:
                self.spans.append((span, args))
        if args is not None:
            external = args.external if type(args.external) is int else _integer(args.external, args.external_old)
            if external is not None:
                self.operators[external] = name, args
        self.unused_operators += 1

    def _span(self, event: Event, category: str) -> None:
        name, args = str(event.name), event.args or Args()
        if category in GPU:
            device = _number(args.device if args.device is not None else event.pid)
            stream = _number(args.stream if args.stream is not None else event.tid)
            kind, thread = GPU[category], _on(device, stream)
        elif category == "cuda_sync":
            self._recorded_wait(event, args)
            return
        else:
            kind, thread = call_kind(name), _number(event.tid)
            if not kind:
                self.dropped[f"call {name}", "no launch, wait or synchronisation"] += 1
                return
        span = self._timed(event, kind, thread)
        if span is not None:
            span.correlation = _integer(args.correlation, None) or -1
            span.bytes = float(args.bytes) if isinstance(args.bytes, int | float) else 0.0
            self.spans.append((span, args))

    def _recorded_wait(self, event: Event, args: Args) -> None:
        """A `cuda_sync` event says which stream waits for which event; the call of the same correlation waits."""
        if "Wait" not in str(args.sync_kind or event.name):
            self.dropped["cuda_sync", "the call is there too"] += 1
            return
        span = self._timed(event, "wait", _number(args.stream))
        target, record = _integer(args.wait_on, None), _integer(args.record, None)
        if span is not None and target is not None and record is not None and args.stream is not None:
            device = _number(args.device if args.device is not None else event.pid)
            span.stream, span.target, span.sequence = _on(device, span.stream), _on(device, target), record
            span.correlation = _integer(args.correlation, None) or -1
            span.operator = "cuda_sync"
            self.spans.append((span, args))

    def _timed(self, event: Event, kind: str, stream: int) -> Span | None:
        start, duration = _float(event.ts), _float(event.dur)
        if start is None or duration is None:
            self.dropped[str(event.cat), "no time"] += 1
            return None
        if duration < 0:
            self.repaired["negative duration taken as 0"] += 1
            duration = 0.0
        self.first = start if self.first is None else min(self.first, start)
        return Span(kind, str(event.name), stream, start, start + duration)

    def finish(self, path: str, head: chrome.Head) -> Recording:
        """Names operators and collectives, and makes times relative."""
        distributed = head.distributed if isinstance(head.distributed, dict) else {}
        rank, world = _number(distributed.get("rank"), -1), _number(distributed.get("world_size"), 0)
        groups = _groups(distributed)
        self.dropped["operator", "only its name and shapes are kept, with what it launched"] = self.unused_operators
        first = self.first or 0.0
        spans = []
        for span, args in self.spans:
            span.start, span.end = (span.start - first) * 1e-6, (span.end - first) * 1e-6
            self._describe(span, args, groups)
            spans.append(span)
        base = _number(head.base, 0)
        return Recording(
            path, "kineto", rank, world, base + round(first * 1e3), _device(head.devices),
            str(distributed.get("nccl_version") or ""), groups,
            table_of(spans, rank), dropped_of(self.dropped, rank), dict(self.repaired),
        )  # fmt: skip

    def _describe(self, span: Span, args: Args | None, groups: dict[str, tuple[int, ...]]) -> None:
        if args is None or span.operator == "cuda_sync":
            return
        external = _integer(args.external, args.external_old)
        name, owner = self.operators.get(-1 if external is None else external, ("", args))
        if span.kind in ("communication", "gradient"):
            name, owner = span.name, args
        span.operator = name
        if span.kind in ("kernel", "communication", "gradient"):
            span.shape = bytes(owner.dims).decode("utf-8", "replace")
            span.dtype = bytes(owner.types).decode("utf-8", "replace")
        if span.kind == "gradient":
            span.bytes = size(span.shape, span.dtype)
        source = args if args.collective is not None else owner if owner.collective is not None else None
        if span.kind in ("kernel", "communication"):
            described(span, source)
            if source is not None and source.group is not None:
                span.group = group_name(source, groups)


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


def _float(value: Any) -> float | None:
    if type(value) is float and -1e300 < value < 1e300:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < 1e300 else None


def _integer(value: Any, other: Any) -> int | None:
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    for candidate in (value, other):
        try:
            number = int(candidate)
        except (TypeError, ValueError, OverflowError):
            continue
        if -LARGEST < number < LARGEST:
            return number
    return None


def _number(value: Any, default: int = 0) -> int:
    """An id as a number; words ("stream 7", "GPU 0") by the digits they hold, else by their letters."""
    found = _integer(value, None)
    if found is not None or value is None:
        return default if found is None else found
    digits = re.findall(r"\d+", str(value))
    return int(digits[0]) % LARGEST if digits else sum(ord(c) for c in str(value))
