"""The timeline as a trace of PyTorch's profiler (Kineto): opens in Perfetto, and Meta's HolisticTraceAnalysis reads it.

A path that ends in .json or .json.gz gets all ranks in one file, one process per rank. A folder gets one file per rank
(rank0.json.gz, ...), which is what HolisticTraceAnalysis wants. The format follows libkineto/src/output_json.cpp:
ts and dur in microseconds, a launch on the host thread linked to its kernel by `correlation` and an ac2g arrow,
ProfilerStep#N around each step on the host thread. The host's events are drawn from the launch times, which is all a
timeline knows of it: a call ends at the launch time and starts at most `CALL` before.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import files
from sim.errors import PrestepError
from sim.exporters import _nccl
from sim.timeline import COMMUNICATION, Timeline, group_ranks

if TYPE_CHECKING:
    from sim.result import LinkLoad, Result

SUFFIXES = (".json", ".json.gz", "/")
CALL = 4000  # ns drawn for a launch call, about what cudaLaunchKernel takes in the measured H200 traces
OPERATOR = 50_000  # ns drawn at most for the operator around it
HOST_THREAD = 1
LINKS = 1_000_000  # number of the process that has the links' counters: above those of ranks
COMPUTE_STREAM = 7  # number of PyTorch's default stream in its traces; the others follow in steps of 4
Event = dict[str, Any]


def write(
    result: Result, path: str | Path, window: tuple[float, float] | None = None, ranks: Collection[int] | None = None
) -> None:
    """Write one file with all ranks, or into a folder one file per rank.

    Of a large run only spans that reach into `window` (seconds), and only these `ranks`.

    Raises
    ------
    PrestepError
        If the result has no timeline, or nothing of it is asked for.
    """
    if result.timeline is None or len(result.timeline) == 0:
        raise PrestepError(f"{path}: the result has no timeline to write")
    result = _part(result, window, ranks)
    timeline, target = result.timeline, Path(path)
    if timeline is None or len(timeline) == 0:
        raise PrestepError(f"{path}: nothing of the timeline is in that window on those ranks")
    if target.suffix and not target.is_dir():
        _save(target, render(result))
        return
    target.mkdir(parents=True, exist_ok=True)
    for rank in timeline.ranks:
        _save(target / f"rank{rank}.json.gz", render(result, rank))


def _part(result: Result, window: tuple[float, float] | None, ranks: Collection[int] | None) -> Result:
    """The result with a part of its timeline and of its links' loads; a rank that stands for others is asked by any."""
    timeline = result.timeline
    if timeline is None or (window is None and ranks is None):
        return result
    loads = result.link_loads
    if ranks is not None:
        alike = {} if result.source is None else result.source.lowered.graph.represents
        wanted = [r for r in timeline.ranks if any(m in ranks for m in alike.get(int(r), (int(r),)))]
        timeline = timeline.select(np.isin(timeline["rank"], wanted))
    if window is not None:
        timeline = timeline.window(*window)
        loads = tuple(_load_in(load, window) for load in loads)
    return replace(result, timeline=timeline, link_loads=loads)


def _load_in(load: LinkLoad, window: tuple[float, float]) -> LinkLoad:
    """A link's load in a window, with what it carries as the window begins."""
    before = max(0, int(np.searchsorted(load.time, window[0], "right")) - 1)
    kept = slice(before, int(np.searchsorted(load.time, window[1], "left")))
    return replace(load, time=np.maximum(load.time[kept], window[0]), load=load.load[kept])


def render(result: Result, rank: int | None = None) -> str:
    """The trace as JSON text, one event per line: of one rank, or of all."""
    import msgspec

    timeline = result.timeline
    if timeline is None:
        raise PrestepError("chrome_trace: the result has no timeline")
    ranks = timeline.ranks if rank is None else (rank,)
    header = _header(result, timeline, rank)
    events = [event for r in ranks for event in _events(result, timeline, r)]
    if rank is None:
        events += [*_flows(timeline), *_links(result)]
    # json.dumps puts a space after the colon: HolisticTraceAnalysis finds the rank with the pattern `"rank":\s+(\d+)`.
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in header.items()]
    body = ",\n".join(msgspec.json.encode(event).decode() for event in events)
    return "{\n" + "\n".join(lines) + '\n"traceEvents": [\n' + body + "\n]}\n"


def _save(path: Path, text: str) -> None:
    if path.suffix == ".gz":
        # No time of writing in the file: the same run gives the same bytes.
        files.write_bytes(path, gzip.compress(text.encode(), compresslevel=5, mtime=0))
    else:
        files.write_text(path, text)


def _header(result: Result, timeline: Timeline, rank: int | None) -> dict[str, Any]:
    said = result.scenario
    gpu = {"name": str(said.get("gpu", "GPU")), "totalGlobalMem": int(result.memory_capacity or 0)}
    groups = _groups(timeline)
    mine = [(text, axis) for text, axis in groups if rank is None or rank in group_ranks(text)]
    info: dict[str, Any] = {"backend": "nccl"}
    if rank is not None:
        info["rank"] = rank
    info["world_size"] = int(said.get("gpus", max(timeline.ranks) + 1))
    info["pg_count"] = len(mine)
    info["pg_config"] = [
        {"pg_name": groups[key], "pg_desc": f"mesh_{key[1]}", "pg_size": len(group_ranks(key[0])),
         "ranks": list(group_ranks(key[0]))}
        for key in mine
    ]  # fmt: skip
    if "nccl_version" in said:
        info["nccl_version"] = str(said["nccl_version"])
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": r, **gpu} for r in (timeline.ranks if rank is None else (rank,))],
        "distributedInfo": info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": f"prestep.rank{rank}.json" if rank is not None else "prestep.json",
    }


def _groups(timeline: Timeline) -> dict[tuple[str, str], str]:
    """(ranks, axis) of every process group -> its name, numbered in sorted order."""
    rows = timeline.select(timeline.matches("kind", *COMMUNICATION))
    pairs = {(g, a) for g, a in zip(rows["group"], rows["axis"], strict=True) if g}
    return {pair: str(i) for i, pair in enumerate(sorted(pairs, key=lambda p: (p[1], group_ranks(p[0]))))}


def _streams(timeline: Timeline) -> dict[str, int]:
    """Stream name -> number in the trace: compute is 7, as in PyTorch; numeric names stay; the host is its thread."""
    names = sorted(set(timeline["stream"]) - {"compute", "host"})
    numbers = {"compute": COMPUTE_STREAM, "host": HOST_THREAD}
    numbers.update({name: int(name) for name in names if name.isdigit() and int(name) > 0})
    free = (n for n in range(20, 10**6, 4) if n not in set(numbers.values()))
    numbers.update({name: next(free) for name in names if name not in numbers})
    return numbers


def _events(result: Result, timeline: Timeline, rank: int) -> Iterator[Event]:
    """All events of a rank: names of its rows, steps, then span by span in the order of launch."""
    spans = timeline.of_rank(rank)
    spans = spans.select(np.lexsort((spans["op"], spans["start"], _launches(spans))))
    streams = _streams(timeline)
    used = sorted({(streams[name], name) for name in set(spans["stream"]) - {"host"}})
    yield from _rows(rank, str(result.scenario.get("gpu", "GPU")), used)
    yield from _steps(spans, rank)
    yield from _work(result, spans, rank, streams, _groups(timeline))


def _rows(rank: int, gpu: str, streams: list[tuple[int, str]]) -> Iterator[Event]:
    def name(kind: str, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": rank, "tid": tid, "ts": 0, "args": args}

    yield name("process_name", 0, name=f"rank {rank}")
    yield name("process_labels", 0, labels=gpu)
    yield name("process_sort_index", 0, sort_index=rank)
    yield name("thread_name", HOST_THREAD, name="host thread")
    yield name("thread_sort_index", HOST_THREAD, sort_index=0)
    for number, text in streams:
        yield name("thread_name", number, name=f"stream {number} {text}")
        yield name("thread_sort_index", number, sort_index=number)


def _links(result: Result) -> Iterator[Event]:
    """Counters of the busiest links in GB/s, in a process of their own; not in the files of single ranks."""
    if result.link_loads:
        yield {"ph": "M", "name": "process_name", "pid": LINKS, "tid": 0, "ts": 0, "args": {"name": "links"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": LINKS, "tid": 0, "ts": 0, "args": {"sort_index": LINKS}}
    for link in result.link_loads:
        name = f"{link.name} (of {link.bandwidth / 1e9:.4g} GB/s)"
        for at, load in zip(_nanoseconds(link.time).tolist(), link.load.tolist(), strict=True):
            args = {"GB/s": round(load / 1e9, 6)}
            yield {"ph": "C", "name": name, "pid": LINKS, "tid": 0, "ts": at / 1000, "args": args}


def _flows(timeline: Timeline) -> Iterator[Event]:
    """Arrows between the spans of one communication: from the rank that came last to those that waited for it.

    A send and its receive, and the spans of a collective, share operation, group and the moment at which bytes begin.
    """
    spans = timeline.select(timeline.matches("kind", *COMMUNICATION))
    if len(spans) == 0:
        return
    streams, ready = _streams(timeline), _nanoseconds(spans["ready"])
    start, end = _nanoseconds(spans["start"]), _nanoseconds(spans["end"])
    meetings: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(
        spans["step"].tolist(),
        spans["axis"].tolist(),
        ready.tolist(),
        end.tolist(),
        spans["group"].tolist(),
        strict=True,
    )
    for i, (step, axis, moment, ended, group) in enumerate(keys):
        meetings.setdefault((step, axis, moment, ended, frozenset(group_ranks(group))), []).append(i)
    number = 0
    for members in meetings.values():
        first, *rest = sorted(members, key=lambda i: (-int(start[i]), int(spans["rank"][i])))
        for other in rest:
            number += 1
            for phase, i in (("s", first), ("f", other)):
                tid = streams[spans["stream"][i]]
                at = start[i] if phase == "s" else max(int(start[i]), int(ready[i]))
                arrow = {"ph": phase, "id": number, "pid": int(spans["rank"][i]), "tid": tid, "ts": int(at) / 1000}
                yield {
                    **arrow,
                    "cat": "communication",
                    "name": "communication",
                    **({"bp": "e"} if phase == "f" else {}),
                }


def _steps(spans: Timeline, rank: int) -> Iterator[Event]:
    """ProfilerStep#N: on the host thread, from the last launch of the step before to its own last; the last one to
    the end of the trace, for the host waits for it."""
    if len(spans) == 0:
        return
    launch, ended = _launches(spans), _nanoseconds(spans["end"])
    issued = np.where(spans.matches("kind", "host"), ended, launch)
    start = _origin(launch)
    for step in spans.steps:
        last = step == spans.steps[-1]
        end = int(ended.max() if last else issued[spans["step"] == step].max())
        yield _event("user_annotation", f"ProfilerStep#{step}", rank, HOST_THREAD, start, end, {})
        start = max(start, end)


def _launches(spans: Timeline) -> np.ndarray:
    """Launch times in ns, and the start where none is known."""
    return _nanoseconds(np.where(np.isnan(spans["launch"]), spans["start"], spans["launch"]))


def _origin(launch: np.ndarray) -> int:
    """When the host's first event may start: at 0, or a little before the first launch (ns)."""
    first = int(launch.min())
    return min(0, first) if first <= OPERATOR else first - OPERATOR


def _records(spans: Timeline) -> Iterator[dict[str, Any]]:
    """Rows as dicts, times in whole nanoseconds (None for a launch that is not known)."""
    columns = {name: column.tolist() for name in spans.columns for column in [spans[name]]}
    for name in ("start", "end", "ready"):
        columns[name] = _nanoseconds(spans[name]).tolist()
    known = np.isfinite(spans["launch"])
    launch = _nanoseconds(np.where(known, spans["launch"], 0.0)).tolist()
    columns["launch"] = [at if ok else None for at, ok in zip(launch, known.tolist(), strict=True)]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _work(
    result: Result, spans: Timeline, rank: int, streams: dict[str, int], groups: dict[tuple[str, str], str]
) -> Iterator[Event]:
    """Operator, launch, arrow and kernel of every span; spans launched at one moment share a graph launch."""
    precision = str(result.scenario.get("precision", "bf16"))
    free = _origin(_launches(spans)) if len(spans) else 0
    correlation, previous = 0, None
    launches = [*spans["launch"].tolist(), None]
    for i, row in enumerate(_records(spans)):
        if row["kind"] == "host":
            yield _host_event(row, rank)
            free = max(free, row["end"])
            continue
        launch, tid = row["launch"], streams[row["stream"]]
        args, category, name = _describe(row, precision, groups)
        if launch is None or launch != previous:
            correlation += 1
            if launch is not None:
                shared = launches[i] == launches[i + 1]
                call = "cudaGraphLaunch" if shared else _CALLS.get(category, "cudaLaunchKernel")
                yield from _launch(row, rank, free, correlation, call, args)
                free = max(free, launch)
            previous = launch
        ids = {"External id": correlation, "device": rank, "context": 1, "stream": tid, "correlation": correlation}
        yield _event(category, name, rank, tid, row["start"], row["end"], {**ids, **args})
        if launch is not None:
            yield {**_arrow("f", correlation, rank, tid, row["start"]), "bp": "e"}


_CALLS = {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}


def _launch(row: Event, rank: int, free: int, correlation: int, call: str, args: Event) -> Iterator[Event]:
    """The operator and the call in it, both ending at the launch time and starting after the previous call."""
    end = row["launch"]
    operator = "record_param_comms" if row["kind"] in COMMUNICATION else row["name"]
    external = {"External id": correlation}
    shown = {key: value for key, value in args.items() if key not in ("grid", "wait (us)")}
    yield _event("cpu_op", operator, rank, HOST_THREAD, max(free, end - OPERATOR), end, {**external, **shown})
    start = max(free, end - CALL)
    yield _event("cuda_runtime", call, rank, HOST_THREAD, start, end, {**external, "correlation": correlation})
    yield _arrow("s", correlation, rank, HOST_THREAD, start)


def _describe(row: Event, precision: str, groups: dict[tuple[str, str], str]) -> tuple[Event, str, str]:
    """Arguments, category and name of a span as the profiler would write them."""
    args: Event = {key: row[key] for key in ("phase", "axis") if row[key]}
    args.update({key: row[key] for key in ("layer", "microbatch") if row[key] >= 0})
    if row["kind"] in COMMUNICATION:
        op = _nccl.operation(row["kind"], row["name"])
        group = groups.get((row["group"], row["axis"]), "0")
        nccl = _nccl.arguments(op, row["bytes"], row["group"], group, row["axis"], precision)
        ours = {"wait (us)": (row["ready"] - row["start"]) / 1000, **args}
        return {"grid": [row["channels"], 1, 1], **nccl, **ours}, "kernel", _nccl.kernel_name(op, precision)
    args.update({key: row[key] for key in ("bytes", "flops") if row[key] > 0})
    if row["kind"] == "copy":
        return args, "gpu_memcpy", _copy_name(row["name"])
    category = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(row["name"][:6], "kernel")
    return args, category, row["name"]


def _copy_name(name: str) -> str:
    """Kineto's name of a copy between host and device."""
    plain = name.lower().replace("_", "")
    to_host = "d2h" in plain or "dtoh" in plain
    return "Memcpy DtoH (Device -> Pinned)" if to_host else "Memcpy HtoD (Pinned -> Device)"


def _host_event(row: Event, rank: int) -> Event:
    """Work of the host that launches nothing: an annotation, such as the data loader's."""
    args = {"phase": row["phase"]} if row["phase"] else {}
    return _event("user_annotation", row["name"], rank, HOST_THREAD, row["start"], row["end"], args)


def _event(category: str, name: str, pid: int, tid: int, start: int, end: int, args: Event) -> Event:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _arrow(phase: str, correlation: int, pid: int, tid: int, at: int) -> Event:
    return {"ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": at / 1000, "cat": "ac2g", "name": "ac2g"}


def _nanoseconds(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
