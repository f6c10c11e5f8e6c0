"""The events of one rank in a trace: its rows, its steps, and operator, launch and kernel of every span."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.timeline import (
    COMMUNICATION,
    EXCHANGES,
    SAVE,
    WRITER,
    Timeline,
)
from prestep.sim.exporters import _nccl

CALL = 4000  # ns drawn for a launch call, about what cudaLaunchKernel takes in the measured H200 traces
OPERATOR = 50_000  # ns drawn at most for the operator around it
HOST_THREAD = 1
COMPUTE_STREAM = 7  # number of PyTorch's default stream in its traces; the others follow in steps of 4
Event = dict[str, Any]
Groups = dict[tuple[str, str], str]
Work = tuple[Event, str, str]  # arguments, category and name of a span


def streams_of(timeline: Timeline) -> dict[str, int]:
    """Stream name -> number in the trace: compute is 7, as in PyTorch; numeric names stay; the host is its thread."""
    names = sorted(set(timeline["stream"]) - {"compute", "host"})
    numbers = {"compute": COMPUTE_STREAM, "host": HOST_THREAD}
    numbers.update(
        {name: int(name) for name in names if name.isdecimal() and int(name) > 0}
    )
    free = (n for n in range(20, 10**6, 4) if n not in set(numbers.values()))
    numbers.update({name: next(free) for name in names if name not in numbers})
    return numbers


def events(
    result: Prediction, timeline: Timeline, rank: int, groups: Groups
) -> Iterator[Event]:
    """All events of a rank: steps, then span by span in the order of launch."""
    spans = timeline.of_rank(rank)
    spans = spans.select(np.lexsort((spans["op"], spans["start"], _launches(spans))))
    streams = streams_of(timeline)
    yield from _steps(spans, rank)
    precision = str(result.scenario.get("precision", "bf16"))
    yield from _work(precision, spans, rank, streams, groups)


def rows(result: Prediction, timeline: Timeline, rank: int) -> Iterator[Event]:
    """The names of a rank and of its rows."""
    gpu, streams = str(result.scenario.get("gpu", "GPU")), streams_of(timeline)
    own = set(timeline.of_rank(rank)["stream"]) - {"host"}

    def name(kind: str, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": rank, "tid": tid, "ts": 0, "args": args}

    yield name("process_name", 0, name=f"rank {rank}")
    yield name("process_labels", 0, labels=gpu)
    yield name("process_sort_index", 0, sort_index=rank)
    yield name("thread_name", HOST_THREAD, name="host thread")
    yield name("thread_sort_index", HOST_THREAD, sort_index=0)
    for number, text in sorted((streams[stream], stream) for stream in own):
        yield name("thread_name", number, name=f"stream {number} {text}")
        yield name("thread_sort_index", number, sort_index=number)


def _steps(spans: Timeline, rank: int) -> Iterator[Event]:
    """ProfilerStep#N: on the host thread, from the last launch of the step before to its own last; the last one to
    the end of its work, for the host waits for it. A save that follows is in no step."""
    spans = spans.select(~spans.matches("stream", SAVE, WRITER))
    if len(spans) == 0:
        return
    launch, ended = _launches(spans), nanoseconds(spans["end"])
    issued = np.where(spans.matches("kind", "host"), ended, launch)
    start = _origin(launch)
    for step in spans.steps:
        last = step == spans.steps[-1]
        end = int(ended.max() if last else issued[spans["step"] == step].max())
        yield _event(
            "user_annotation", f"ProfilerStep#{step}", rank, HOST_THREAD, start, end, {}
        )
        start = max(start, end)


def _launches(spans: Timeline) -> np.ndarray:
    """Launch times in ns, and the start where none is known."""
    return nanoseconds(
        np.where(np.isnan(spans["launch"]), spans["start"], spans["launch"])
    )


def _origin(launch: np.ndarray) -> int:
    """When the host's first event may start: at 0, or a little before the first launch (ns)."""
    first = int(launch.min())
    return min(0, first) if first <= OPERATOR else first - OPERATOR


def _records(spans: Timeline) -> Iterator[dict[str, Any]]:
    """Rows as dicts, times in whole nanoseconds (None for a launch that is not known)."""
    columns = {
        name: column.tolist() for name in spans.columns for column in [spans[name]]
    }
    for name in ("start", "end", "ready"):
        columns[name] = nanoseconds(spans[name]).tolist()
    launched = np.isfinite(spans["launch"])
    launch = nanoseconds(np.where(launched, spans["launch"], 0.0)).tolist()
    columns["launch"] = [
        at if ok else None for at, ok in zip(launch, launched.tolist(), strict=True)
    ]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _host_begin(spans: Timeline) -> int:
    return _origin(_launches(spans)) if len(spans) else 0


def _work(
    precision: str, spans: Timeline, rank: int, streams: dict[str, int], groups: Groups
) -> Iterator[Event]:
    """Operator, launch, arrow and kernel of every span; spans launched at one moment share a graph launch."""
    free = _host_begin(spans)
    correlation, previous = 0, None
    launches = [*spans["launch"].tolist(), None]
    names = [*map(str, spans["name"].tolist()[1:]), ""]
    for row, (moment, following), beside in zip(
        _records(spans), pairwise(launches), names, strict=True
    ):
        if row["kind"] == "host":
            yield _host_event(row, rank)
            free = max(free, row["end"])
            continue
        launch, work = row["launch"], _describe(row, precision, groups)
        if launch is None or launch != previous:
            correlation += 1
            if launch is not None:
                # What a row of layers exchanges is drawn beside it: no graph has it.
                graph = moment == following and EXCHANGES not in beside
                yield from _launch(row, rank, free, correlation, graph, work)
                free = max(free, launch)
            previous = launch
        yield from _kernel(row, rank, streams[row["stream"]], correlation, work)


def _kernel(
    row: Event, rank: int, stream: int, correlation: int, work: Work
) -> Iterator[Event]:
    """The span on its stream, and the arrow that comes from its launch."""
    args, category, name = work
    ids = {
        "External id": correlation,
        "device": rank,
        "context": 1,
        "stream": stream,
        "correlation": correlation,
    }
    start, end = row["start"], row["end"]
    yield _event(category, name, rank, stream, start, end, {**ids, **args})
    if row["launch"] is not None:
        yield {**_arrow("f", correlation, rank, stream, start), "bp": "e"}


_CALLS = {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}


def _launch(
    row: Event, rank: int, free: int, correlation: int, graph: bool, work: Work
) -> Iterator[Event]:
    """The operator and the call in it, both ending at the launch time and starting after the previous call."""
    args, category, _ = work
    end = row["launch"]
    ids = {"External id": correlation}
    operator = "record_param_comms" if row["kind"] in COMMUNICATION else row["name"]
    shown = {key: args[key] for key in args if key not in ("grid", "wait (us)")}
    start = max(free, end - OPERATOR)
    yield _event("cpu_op", operator, rank, HOST_THREAD, start, end, {**ids, **shown})
    call = "cudaGraphLaunch" if graph else _CALLS.get(category, "cudaLaunchKernel")
    ids["correlation"] = correlation
    start = max(free, end - CALL)
    yield _event("cuda_runtime", call, rank, HOST_THREAD, start, end, ids)
    yield _arrow("s", correlation, rank, HOST_THREAD, start)


def _describe(row: Event, precision: str, groups: Groups) -> Work:
    """A span as the profiler would write it."""
    args: Event = {key: row[key] for key in ("phase", "axis") if row[key]}
    args.update({key: row[key] for key in ("layer", "microbatch") if row[key] >= 0})
    if row["kind"] in COMMUNICATION:
        return _describe_communication(row, precision, groups, args)
    args.update({key: row[key] for key in ("bytes", "flops") if row[key] > 0})
    if row["kind"] == "copy":
        return args, "gpu_memcpy", _copy_name(row["name"])
    category = _CATEGORIES.get(row["name"][:6], "kernel")
    return args, category, row["name"]


_CATEGORIES = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}


def _describe_communication(
    row: Event, precision: str, groups: Groups, args: Event
) -> Work:
    op = _nccl.operation(row["kind"], row["name"])
    group, axis = row["group"], row["axis"]
    name = groups.get((group, axis), "0")
    nccl = _nccl.arguments(op, row["bytes"], group, name, axis, precision)
    grid = {"grid": [row["channels"], 1, 1]}
    wait = {"wait (us)": (row["ready"] - row["start"]) / 1000}
    kernel = _nccl.kernel_name(op, precision)
    return {**grid, **nccl, **wait, **args}, "kernel", kernel


def _copy_name(name: str) -> str:
    """Kineto's name of a copy between host and device."""
    plain = name.lower().replace("_", "")
    to_host = "d2h" in plain or "dtoh" in plain
    return (
        "Memcpy DtoH (Device -> Pinned)"
        if to_host
        else "Memcpy HtoD (Pinned -> Device)"
    )


def _host_event(row: Event, rank: int) -> Event:
    """Work of the host that launches nothing: an annotation, such as the data loader's."""
    args = {"phase": row["phase"]} if row["phase"] else {}
    return _event(
        "user_annotation",
        row["name"],
        rank,
        HOST_THREAD,
        row["start"],
        row["end"],
        args,
    )


def _event(
    category: str, name: str, pid: int, tid: int, start: int, end: int, args: Event
) -> Event:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        **times,
        "args": args,
    }


def _arrow(phase: str, correlation: int, pid: int, tid: int, at: int) -> Event:
    return {
        "ph": phase,
        "id": correlation,
        "pid": pid,
        "tid": tid,
        "ts": at / 1000,
        "cat": "ac2g",
        "name": "ac2g",
    }


def nanoseconds(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
