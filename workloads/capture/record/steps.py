"""Which part of a program's run is one step: from one update of the weights to the next."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from workloads.capture.record.dispatch import Names, Recorder
from workloads.capture.record.log import Log

#: Python that runs because a program is recorded: no program's host runs it.
OURS = (
    "/workloads/capture/record/",
    "/torch/_subclasses/",
    "/torch/_library/",
    "/torch/_dynamo/",
    "/torch/compiler/",
    "/torch/_compile.py",
    "/torch/_ops.py",
    "/torch/overrides",
    "/torch/utils/_python_dispatch",
    "/torch/utils/backend_registration",
)
#: What both we and programs use: whose it is says its caller.
SHARED = ("/torch/utils/_pytree", "/contextlib.py", "/functools.py")
#: Those of ours that call the program.
CALLING = (
    "/workloads/capture/record/regions.py",
    "/workloads/capture/record/__main__.py",
)


def is_of_the_program(frame: Any) -> bool:
    """Whether a call of a Python function is the program's own, as without a recorder."""
    if _is_in(frame, OURS):
        return False
    caller = frame.f_back
    while caller is not None and _is_in(caller, SHARED):
        caller = caller.f_back
    return caller is None or _is_in(caller, CALLING) or not _is_in(caller, OURS)


def _is_in(frame: Any, files: tuple[str, ...]) -> bool:
    return _lies_in(frame.f_code.co_filename, files)


@functools.cache
def _lies_in(name: str, files: tuple[str, ...]) -> bool:
    return any(part in name for part in files)


class Recorded(BaseException):
    """Ends the program: its step is recorded."""


@dataclass
class Steps:
    """The steps of a run as they end; one of them is kept.

    A step ends where an optimizer has updated its first weights after gradients were computed. So it begins with what
    is left of one update (other groups of weights, zeroing gradients) and ends within the next one.
    """

    recorder: Recorder
    wanted: int
    stop: bool = False
    ended: int = 0
    events: list[Any] = field(default_factory=list)
    before: dict[int, tuple[int, int]] = field(default_factory=dict)
    kept: tuple[int, list[Any], dict[int, tuple[int, int]]] | None = None
    weights: dict[int, int] = field(default_factory=dict)  # by optimizer

    def boundary(self) -> None:
        if self.kept is not None and self.kept[0] >= self.wanted:
            return
        self.ended += 1
        log = Log.current
        if self.ended > 1:
            self.kept = self.ended, log.events, self.before
        self.before = dict(self.recorder.storages.alive)
        log.events, log.backward, log.calls = [], False, 0
        if self.ended == self.wanted:
            log.open = False
        counting = self.ended == self.wanted - 1
        self.recorder.counter = self._count if counting else None
        if counting:
            sys.setprofile(self.recorder.counter)
        if self.stop and self.ended == self.wanted:
            raise Recorded

    def _count(self, frame: Any, event: str, _: Any) -> None:
        """Python's calls, as a measure of the host's work."""
        if self.recorder.counter is None:
            sys.setprofile(None)  # of a thread that counted until the step ended
        elif event == "call" and is_of_the_program(frame):
            Log.current.calls += 1

    def finish(self) -> None:
        sys.setprofile(None)

    def recording(self) -> dict[str, Any]:
        step, events, before = self.kept or (0, [], {})
        return {
            "rank": int(os.environ["RANK"]),
            "step": step,
            "steps": self.ended,
            "operations": list(self.recorder.table),
            "events": events,
            "alive": {str(number): size for number, (size, _) in before.items()},
            "groups": self.recorder.works.groups,
            "parameters": sum(self.weights.values()),
            "assumed": dict(self.recorder.assumed),
            "compiled": sorted(set(Log.compiled)),
        }


def watch(recorder: Recorder, wanted: int, stop: bool) -> Steps:
    """Follows the optimizers of the program from now on; ``stop``: and ends it when the wanted step has ended."""
    steps = Steps(recorder, wanted, stop)

    def updated(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in steps.weights:
            groups = optimizer.param_groups
            steps.weights[id(optimizer)] = sum(
                p.numel() for g in groups for p in g["params"]
            )
        if Log.current.backward:
            Log.current.backward = False
            steps.boundary()

    register_optimizer_step_post_hook(updated)
    _follow_backward(recorder)
    return steps


def _follow_backward(recorder: Recorder) -> None:
    """Backward, on a thread of its own, knows the program's names; then what it asked of other ranks is waited for.

    Functions that backward calls, such as those of checkpointed layers, name devices as the program does, and the
    C++ of DistributedDataParallel waits for nothing before its end.
    """
    engine = torch.autograd.graph._engine_run_backward

    def run(*arguments: Any, **options: Any) -> Any:
        with Names():
            result = engine(*arguments, **options)
        recorder.works.settle()
        return result

    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run
