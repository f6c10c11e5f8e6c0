"""The host by itself: how fast Python, PyTorch's dispatcher and the memory are. Launches are measured by `launches`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import prestep
from prestep.validation.measure.session import Session

TITLE, NEEDS, WEIGHT, ORDER = "speed of the host", "host", 3.0, 1
REPEATS = 5
DISPATCH = "prestep.validation.measure.dispatch"
SECONDS = (2.0, 12.0)  # of its steps, at least and at most
PATIENCE = 60.0  # for PyTorch to start and end


def measure(session: Session) -> None:
    """Seconds of a loop of Python calls, of a copy of memory, of a system call and of a sleep."""
    count = 2_000 if session.tiny else 50_000
    size = 2**20 if session.tiny else 128 * 2**20
    source = bytearray(os.urandom(2**16)) * (size // 2**16)

    def calls() -> None:
        for _ in range(count):
            _empty(1, key=2)

    def tables() -> list[object]:
        return [{"a": i, "b": session}["a"] for i in range(count)]

    def system_calls() -> list[int]:
        return [os.getppid() for _ in range(count)]

    _row(session, "python_call", calls, count, 0)
    _row(session, "attribute_dict", tables, count, 0)
    _row(session, "memory_copy", lambda: bytearray(source), 1, 2 * size)
    _row(session, "system_call", system_calls, count, 0)
    _row(session, "sleep_1us", lambda: time.sleep(1e-6), 1, 0)
    _dispatch(session)


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
    row = {"s": statistics.median(times), "s_min": min(times), "bytes": size}
    session.emit("host", kind="host", what=what, **row, node=session.rank)


def _dispatch(session: Session) -> None:
    """Rows of training steps on the CPU, one a core, from a process of its own: this one has no PyTorch."""
    path = os.pathsep.join(
        filter(None, (str(prestep.HOME), os.environ.get("PYTHONPATH", "")))
    )
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    least, most = SECONDS
    seconds = 0.1 if session.tiny else min(most, max(least, session.left()))
    done = subprocess.run(
        [sys.executable, "-m", DISPATCH, str(seconds)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=seconds + PATIENCE,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended"]
        session.skip("training steps on the CPU", last[0])
        return
    for line in done.stdout.splitlines():
        turn = json.loads(line)
        session.emit("host", kind="dispatch", **turn, node=session.rank)
