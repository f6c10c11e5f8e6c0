"""What lies across the ranks of a trace: counters of links and memory, and arrows between those that communicate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.analysis.prediction import Prediction
from sim.analysis.timeline import COMMUNICATION, Timeline, group_ranks
from sim.exporters._trace_events import Event, nanoseconds, streams_of

LINKS = 1_000_000  # number of the process that has the links' counters: above those of ranks
MIB = 2.0**20
FINEST = 2e-3  # of the peak: smaller changes of memory are not worth an event


def links(result: Prediction) -> Iterator[Event]:
    """Counters of the busiest links in GB/s, in a process of their own; not in the files of single ranks."""
    if result.link_loads:
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": LINKS,
            "tid": 0,
            "ts": 0,
            "args": {"name": "links"},
        }
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": LINKS,
            "tid": 0,
            "ts": 0,
            "args": {"sort_index": LINKS},
        }
    for link in result.link_loads:
        name = f"{link.name} (of {link.bandwidth / 1e9:.4g} GB/s)"
        for at, load in zip(
            nanoseconds(link.time).tolist(), link.load.tolist(), strict=True
        ):
            args = {"GB/s": round(load / 1e9, 6)}
            yield {
                "ph": "C",
                "name": name,
                "pid": LINKS,
                "tid": 0,
                "ts": at / 1000,
                "args": args,
            }


def flows(timeline: Timeline) -> Iterator[Event]:
    """Arrows between the spans of one communication: from the rank that came last to those that waited for it.

    A send and its receive, and the spans of a collective, share operation, group and the moment at which bytes begin.
    """
    spans = timeline.select(timeline.matches("kind", *COMMUNICATION))
    if len(spans) == 0:
        return
    streams, ready = streams_of(timeline), nanoseconds(spans["ready"])
    start, end = nanoseconds(spans["start"]), nanoseconds(spans["end"])
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
        meetings.setdefault(
            (step, axis, moment, ended, frozenset(group_ranks(group))), []
        ).append(i)
    number = 0
    for members in meetings.values():
        first, *rest = sorted(
            members, key=lambda i: (-int(start[i]), int(spans["rank"][i]))
        )
        for other in rest:
            number += 1
            for phase, i in (("s", first), ("f", other)):
                tid = streams[spans["stream"][i]]
                at = start[i] if phase == "s" else max(int(start[i]), int(ready[i]))
                arrow = {
                    "ph": phase,
                    "id": number,
                    "pid": int(spans["rank"][i]),
                    "tid": tid,
                    "ts": int(at) / 1000,
                }
                yield {
                    **arrow,
                    "cat": "communication",
                    "name": "communication",
                    **({"bp": "e"} if phase == "f" else {}),
                }


def memory(
    result: Prediction, rank: int, window: tuple[float, float] | None = None
) -> Iterator[Event]:
    """A counter of a rank's memory by owner in MiB: what its allocator has handed out, where the GPU computes it."""
    known = {} if result.details is None else result.details.allocations
    if rank not in known:
        return
    for step in range(len(known[rank].end)):
        found = known[rank].changes(step)
        if found is None:
            return
        owners = {
            owner: sizes for owner, sizes in found.owners.items() if sizes.max() > 0
        }
        total = sum(owners.values(), np.zeros(len(found.time)))
        last = -np.inf
        for at in _fullest(found.time, total):
            moment, size = float(found.time[at]), float(total[at])
            seen = window is None or window[0] <= moment < window[1]
            if not seen or abs(size - last) < FINEST * float(total.max()):
                continue
            last = size
            args = {
                owner: round(float(sizes[at]) / MIB, 3)
                for owner, sizes in owners.items()
            }
            ts = round(moment * 1e9) / 1000
            yield {
                "ph": "C",
                "name": "memory (MiB)",
                "pid": rank,
                "tid": 0,
                "ts": ts,
                "args": args,
            }


def _fullest(time: np.ndarray, total: np.ndarray) -> list[int]:
    """Of all changes at one moment the one after which most is alive, in the order of time."""
    order = np.lexsort((total, time))
    last = np.append(np.flatnonzero(np.diff(time[order])), len(order) - 1)
    return order[last].tolist()  # type: ignore[no-any-return]
