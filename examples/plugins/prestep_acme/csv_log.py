"""One rank's steps, launches and kernels from CSV with the head below."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.traces.schema import Recording, Span, dropped_of, table_of

HEAD = "kind,stream,name,start_us,duration_us,launch"
KINDS = (
    "step",
    "launch",
    "kernel",
)  # `launch` numbers a launch and the kernel that it started


def sniff(head: bytes) -> bool:
    """Whether a file is of this format, by its first bytes (unpacked, where it is gzip)."""
    return head.startswith(HEAD.encode())


def read(path: Path) -> Recording:
    """What one rank recorded.

    Raises
    ------
    InputError
        For a row that is not as the head says.
    """
    spans, counts = [], Counter[tuple[str, str]]()
    with open(path, newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number == 1:
                continue
            try:
                kind, stream, name, start, duration, launch = row
                times = float(start) * 1e-6, float(duration) * 1e-6
                span = Span(
                    kind,
                    name,
                    int(stream),
                    times[0],
                    sum(times),
                    correlation=int(launch),
                )
            except ValueError:
                raise InputError(
                    Mistake(str(path), f"line {number}", ",".join(row), HEAD)
                ) from None
            if kind in KINDS:
                spans.append(span)
            else:
                counts[kind, f"none of {', '.join(KINDS)}"] += (
                    1  # told among what was left out
                )
    return Recording(
        str(path),
        "csv_log",
        -1,
        0,
        0,
        "",
        "",
        {},
        table_of(spans, -1),
        dropped_of(counts, -1),
    )
