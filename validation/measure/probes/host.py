"""The host by itself: how fast Python and the memory are. Launches are measured by `launches`, steps by `training`."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from validation.measure.session import Session

TITLE, NEEDS, WEIGHT, ORDER = "speed of the host", "host", 3.0, 1
REPEATS = 5


def measure(session: Session) -> None:
    """Seconds of a loop of Python calls, of a copy of memory, of a system call and of a sleep."""
    count = 2_000 if session.tiny else 50_000
    size = 2**20 if session.tiny else 128 * 2**20
    source = bytearray(os.urandom(2**16)) * (size // 2**16)

    def calls() -> None:
        for _ in range(count):
            _empty(1, key=2)

    def nap() -> None:
        time.sleep(1e-6)

    _row(session, "python_call", calls, count, 0)
    _row(
        session,
        "attribute_dict",
        lambda: [{"a": i, "b": session}["a"] for i in range(count)],
        count,
        0,
    )
    _row(session, "memory_copy", lambda: bytearray(source), 1, 2 * size)
    _row(session, "system_call", lambda: [os.getppid() for _ in range(count)], count, 0)
    _row(session, "sleep_1us", nap, 1, 0)


def _empty(a: int, key: int) -> int:
    return a


def _row(
    session: Session, what: str, call: Callable[[], object], count: int, size: int
) -> None:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) / count)
    s = statistics.median(times)
    session.emit(
        "host",
        kind="host",
        what=what,
        s=s,
        s_min=min(times),
        bytes=size,
        node=session.rank,
    )
