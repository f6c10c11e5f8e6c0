"""What torch.distributed.checkpoint costs beside bytes: plans, a thread's waits for the GPU, contexts.

Read in PyTorch 2.11 (`torch/distributed/checkpoint`) and timed phase by phase (`lab/cases/checkpoint`):

* A plan is made of Python objects, gathered on one rank, and scattered. Meanwhile a thread has the interpreter.
* The writer copies ahead through a stream and waits for it whenever 10 MB are under way. The stream is the default one,
  on which the steps compute. So the thread of `async_save` waits for all that the step has launched.
* A new thread's device is 0. Threads of other ranks wait for GPU 0 too: each makes a context there the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.sim.engine.execution import Run
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.planning.planned import Planned
from prestep.sim.storage.systems import constants

AHEAD = 10_000_000  # bytes that PyTorch's writer copies ahead (per_thread_copy_ahead)


@dataclass(frozen=True)
class WriterTensors:
    """The tensors of one writer, in bytes, and how many write; no tensors: nobody counted them."""

    sizes: tuple[float, ...]
    writers: int

    @property
    def plan(self) -> float:
        """Seconds of Python in which all writers' plans are made."""
        c, count = constants(), len(self.sizes)
        if not count:
            return c["plan"]
        return count * (c["plan_tensor"] + self.writers * c["plan_writer"])

    @property
    def items(self) -> float:
        """Seconds of Python in which the tensors are written, beside those that their bytes take."""
        return len(self.sizes) * constants()["item"]

    @property
    def results(self) -> float:
        """Seconds of Python at the end: what was written where is gathered, and becomes the metadata."""
        c = constants()
        each = c["result_tensor"] + self.writers * c["result_writer"]
        return len(self.sizes) * each

    @property
    def python(self) -> float:
        """Seconds for which a thread has the interpreter."""
        return self.plan + self.items + self.results


def tensors_of(
    sizes: Sequence[float], share: float, writers: int, copies: int, dealt: int
) -> WriterTensors:
    """The tensors of a writer of `share` bytes.

    Parameters
    ----------
    sizes
        Bytes of the parameters that a rank keeps.
    copies
        Tensors that are written for each parameter: itself, and its optimizer's moments.
    dealt
        Ranks that hold the same parameters and deal them out.
    """
    mine = sorted(sizes)[::dealt] * copies
    scale = share / max(1.0, sum(mine))
    return WriterTensors(tuple(size * scale for size in mine), writers)


@dataclass(frozen=True, eq=False)
class Backlog:
    """What a step has launched and not computed yet: of a loop that waits for the GPU at the end of every step.

    `launch` has the times at which the host launches (s from the step's start), `done` when all that was launched by
    then is computed.
    """

    launch: np.ndarray
    done: np.ndarray
    step: float

    def wait(self, time: float) -> float:
        """Seconds from `time` until the GPU has done what was launched by then."""
        within = time % self.step
        at = int(np.searchsorted(self.launch, within, side="right")) - 1
        return max(0.0, float(self.done[at]) - within) if at >= 0 else 0.0

    @property
    def slack(self) -> float:
        """Seconds for which the host may do something else before the step takes longer."""
        return max(0.0, self.step - float(self.launch[-1]))


def backlog(planned: Planned, run: Run, step: float) -> Backlog:
    """Of the first simulated rank's default stream, in the first step: it begins with an idle GPU."""
    program = planned.graph.programs[0]
    default = (program.kind == KERNEL) & (program.stream == 0)
    launch, end = run.launch[0][0][default], run.end[0][0][default]
    order = np.argsort(launch, kind="stable")
    return Backlog(launch[order], np.maximum.accumulate(end[order]), step)


def waits(tensors: Sequence[float], rate: float, queued: Backlog) -> float:
    """Seconds that a thread waits for the GPU while it writes tensors, smallest first, at `rate` bytes/s each.

    As PyTorch's loader: copies are queued until `AHEAD` bytes are under way, the stream is synchronised, and tensors
    are taken out and written until less is under way.
    """
    time, waited, ahead = 0.0, 0.0, list[float]()
    under_way = 0.0
    for size in sorted(tensors):
        ahead.append(size)
        under_way += size
        if under_way < AHEAD:
            continue
        wait = queued.wait(time)
        waited, time = waited + wait, time + wait
        while under_way >= AHEAD:
            taken = ahead.pop(0)
            under_way -= taken
            time += taken / rate
    return waited
