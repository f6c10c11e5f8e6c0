"""Times on the GPU: medians between events with the L2 flushed before each run, or of calls back to back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from prestep.validation.measure.group import GroupSession

FLUSH = 256 * 2**20  # bytes that are written before each run: more than any L2
RUNS = (5, 100)  # at least and at most
LOAD = 4096  # rows and columns of the products that heat
Call = Callable[[], Any]


class Case(NamedTuple):
    """Something to time on one GPU.

    Attributes
    ----------
    name : str
        What is said of it where it is skipped or fails.
    make : callable
        Makes the operands, and answers with the call.
    cells, more : mapping
        Of its row, before the times and after them.
    """

    name: str
    make: Callable[[], Call]
    cells: Mapping[str, Any]
    more: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Times:
    """Seconds: median, least, greatest of `runs`."""

    s: float
    s_min: float
    s_max: float
    runs: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def of(values: list[float]) -> Times:
    return Times(statistics.median(values), min(values), max(values), len(values))


class Bench:
    """Times single calls on one GPU, as triton's do_bench does: a cold L2, an event pair around each run."""

    def __init__(
        self, session: GroupSession, aim: float = 0.025, heat: float = 0.0
    ) -> None:
        """`aim`: seconds of the timed calls together; `heat`: of load before them, for the clocks of a step."""
        self.session, self.aim, self.heat = session, aim, heat
        self._flush: Any = None
        self._load: Any = None
        self._once = 1.0

    def rows(self, probe: str, cases: Iterable[Case], need: float) -> None:
        """Writes a row for each case while `need` seconds are left; one that fails is a row of its error."""
        session = self.session
        for case in cases:
            if session.left() < need:
                session.skip(
                    f"{probe} {case.name} and what comes after", "no time left"
                )
                return
            try:
                times = self(case.make())
            except Exception as error:
                what = {"at": probe, "what": case.name, "e": str(error)[:200]}
                session.emit("micro", kind="error", **what)
                continue
            session.emit("micro", **case.cells, **times.to_json(), **case.more)

    def __call__(self, call: Call) -> Times:
        """Median of calls that together take `aim` seconds."""
        if not self.session.cuda:
            return of([_wall(call) for _ in range(2)])

        if self._flush is None:
            self._flush = torch.empty(
                FLUSH // 4, dtype=torch.int32, device=self.session.device
            )
        self._warm()
        call()
        once = max(self._times(call, 3)[1:])
        runs = int(min(max(self.aim / max(once, 1e-7), RUNS[0]), RUNS[1]))
        return of(self._times(call, runs + 1)[1:])

    def _warm(self) -> None:
        """Arithmetic for `heat` seconds: a GPU that rests between bursts runs products up to a tenth faster."""
        if self.heat <= 0:
            return
        if self._load is None:
            bf = torch.bfloat16
            self._load = [
                torch.randn(LOAD, LOAD, device=self.session.device, dtype=bf)
                for _ in range(3)
            ]
            for _ in range(2):  # the first has cuBLAS's start in it
                begin = time.perf_counter()
                torch.mm(self._load[0], self._load[1], out=self._load[2])
                torch.cuda.synchronize()
                self._once = time.perf_counter() - begin
        for _ in range(max(1, int(self.heat / self._once))):
            torch.mm(self._load[0], self._load[1], out=self._load[2])

    def _times(self, call: Call, runs: int) -> list[float]:
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(runs)
        ]
        for begin, end in pairs:
            self._flush.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]


def back_to_back(session: GroupSession, call: Call, count: int) -> float:
    """Seconds of a call among `count` equal ones, from a common start of all ranks."""
    session.barrier()
    if not session.cuda:
        return _wall(lambda: [call() for _ in range(count)]) / count

    begin, end = (
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / count


def _wall(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return max(time.perf_counter() - begin, 1e-9)
