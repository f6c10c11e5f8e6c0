"""Times on the GPU: medians between events with the L2 flushed before each run, or of calls back to back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validation.measure.session import Session

FLUSH = 256 * 2**20  # bytes that are written before each run: more than any L2
RUNS = (5, 100)  # at least and at most


@dataclass(frozen=True)
class Times:
    """Seconds: median, least, greatest of `runs`."""

    s: float
    s_min: float
    s_max: float
    runs: int

    def to_json(self) -> dict[str, float]:
        return {"s": self.s, "s_min": self.s_min, "s_max": self.s_max, "runs": self.runs}


def of(values: list[float]) -> Times:
    return Times(statistics.median(values), min(values), max(values), len(values))


class Bench:
    """Times single calls on one GPU, as triton's do_bench does: a cold L2, an event pair around each run."""

    def __init__(self, session: Session, aim: float = 0.015) -> None:
        self.session, self.aim = session, aim
        self._flush: Any = None

    def __call__(self, call: Callable[[], Any], aim: float | None = None) -> Times:
        """`aim`: seconds of the timed calls together."""
        if not self.session.cuda:
            return of([_wall(call) for _ in range(2)])
        import torch

        if self._flush is None:
            self._flush = torch.empty(FLUSH // 4, dtype=torch.int32, device=self.session.device)
        call()
        once = max(self._times(call, 3)[1:])
        runs = int(min(max((aim or self.aim) / max(once, 1e-7), RUNS[0]), RUNS[1]))
        return of(self._times(call, runs + 1)[1:])

    def _times(self, call: Callable[[], Any], runs: int) -> list[float]:
        import torch

        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        for begin, end in pairs:
            self._flush.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]


def back_to_back(session: Session, call: Callable[[], Any], count: int) -> float:
    """Seconds of a call among `count` equal ones, from a common start of all ranks."""
    session.barrier()
    if not session.cuda:
        return _wall(lambda: [call() for _ in range(count)]) / count
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / count


def _wall(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return max(time.perf_counter() - begin, 1e-9)
