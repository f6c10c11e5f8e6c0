"""What operations of a run waited for, and for how long: the same where rounds are put in again."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.engine.clock import Clock
from prestep.sim.engine.host_thread import HostThread
from prestep.sim.engine.steady.window import Uneven, same, streams
from prestep.sim.graph.opgraph import SYNC, Program


class Waits(NamedTuple):
    """Seconds of operations, of shape (steps, operations); 0 for those of the host thread.

    Attributes
    ----------
    free
        From the end of all that an operation waits for to its start.
    lead
        From its launch to the end of all else that it waits for; negative: its launch comes later.
    """

    free: np.ndarray
    lead: np.ndarray

    def of(self, step: int, ops: Any = slice(None)) -> Waits:
        """Those of some operations of a step."""
        return Waits(self.free[step, ops], self.lead[step, ops])

    def same(self, other: Waits, tolerance: float) -> None:
        """Raises Uneven where operations do not wait as long; those that are launched early do not wait for that."""
        same(self.free, other.free, tolerance)
        early = (self.lead >= 0) & (other.lead >= 0)
        late, then = (np.where(early, 0.0, lead) for lead in (self.lead, other.lead))
        same(late, then, tolerance)


def waits(
    program: Program,
    launch_latency: float,
    launch: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Waits:
    """What a rank's operations waited for, from their launches, starts and ends, of shape (steps, operations)."""
    flat, first = _before(program)
    steps, n = end.shape
    at = flat[None, :] + n * np.arange(steps)[:, None]
    ended = np.where(at >= 0, end.ravel()[np.maximum(at, 0)], 0.0)
    free = np.maximum.reduceat(ended, first, axis=1) if n else ended
    latency = launch_latency if program.latency is None else program.latency
    on_host = program.kind == SYNC
    lead = np.where(on_host, 0.0, free - launch - latency)
    return Waits(np.where(on_host, 0.0, start - free), lead)


def _before(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """What operations wait for, one after the other, and where each one's begin: the last of its stream, and others."""
    last = _last_of_stream(program).tolist()
    deps = [(before, *mine) for before, mine in zip(last, program.deps, strict=True)]
    counts = np.array([len(mine) for mine in deps], dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(deps), np.int64)
    return flat, np.cumsum(counts) - counts


def launched(
    program: Program, limit: int, start: np.ndarray, end: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Launches and starts as the host thread issues operations that end at known times; (steps, operations) each.

    Raises
    ------
    Uneven
        If a synchronisation of the host would not end when it has to.
    """
    launch, starts = [0.0] * end.size, start.ravel().tolist()
    # The thread itself finds when its synchronisations end.
    ends = np.where(program.kind == SYNC, -1.0, end).ravel().tolist()
    env = Clock()
    host = HostThread(env, program, launch, starts, ends, lambda _: env.event(), limit)
    if next(host.run(), None) is not None:
        raise Uneven
    same(np.array(ends), end.ravel(), tolerance)
    return np.array(launch).reshape(end.shape), np.array(starts).reshape(end.shape)


def _last_of_stream(program: Program) -> np.ndarray:
    """The operation before each one on its stream; before the first one the last one, of the step before: negative."""
    last, n = np.zeros(len(program), dtype=np.int64), len(program)
    for ops in streams(program).values():
        last[ops] = np.concatenate([[ops[-1] - n], ops[:-1]])
    return last
