"""Which part of a program's run is one step: from one update of the weights to the next."""

from __future__ import annotations

import dis
import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from prestep.workloads.capture.record import attention, host_arithmetic, owners, values
from prestep.workloads.capture.record.dispatch import Recorder
from prestep.workloads.capture.record.graphs import Graph
from prestep.workloads.capture.record.marks import Marks
from prestep.workloads.capture.record.modes import Names
from prestep.workloads.capture.record.regions import Regions, parts
from prestep.workloads.capture.record.streams import Log, Streams
from prestep.workloads.capture.record.values import Experts
from prestep.workloads.memory.allocator import Segment
from prestep.workloads.operation import words

#: Python that runs because a program is recorded: no program's host runs it.
OURS = words(
    "/workloads/capture/record/ /workloads/memory/allocator /workloads/operation.py /torch/_library/ "
    "/torch/_subclasses/ /torch/overrides /torch/utils/_python_dispatch "
    "/torch/utils/backend_registration"
)
#: What both we and programs use: whose it is says its caller.
SHARED = words(
    "/torch/utils/_pytree /contextlib.py /functools.py /torch/_dynamo/ /torch/compiler/ "
    "/torch/_compile.py /torch/_ops.py"
)
#: Where functions of PyTorch are passed on: what these call back is the program's again.
PASSING = ("/workloads/capture/record/modes.py",)
#: Updates on a stream of the program's own, beyond the wanted one, after which it is not taken to warm up for a graph.
WARMING = 16
#: Updates of weights after which a program that has asked the GPU for nothing is taken to train on the host.
ON_THE_HOST = 32
#: Items that generators hand out in the time of one call (measured on a quiet host: 0.06 to 0.12 us, 0.95 a call).
ITEMS = 8
NAMED = 8  # names of ranges that a recording has, for who asks which of them mark steps
#: Those of ours that call the program.
CALLING = (
    "/workloads/capture/record/regions.py",
    "/workloads/capture/record/__main__.py",
    "/workloads/capture/record/marks.py",
)


def goes_on(frame: Any) -> bool:
    """Whether a generator hands out a further item, which the interpreter reports as a call."""
    return bool(frame.f_lasti > _beginning(frame.f_code))


@functools.cache
def _beginning(code: CodeType) -> int:
    """Where a function's first instruction is."""
    every = dis.get_instructions(code)
    return next((each.offset for each in every if each.opname == "RESUME"), 0)


def is_of_the_program(frame: Any) -> bool:
    """Whether a call of a Python function is the program's own, as without a recorder."""
    if _is_in(frame, OURS):
        return False
    called, caller = frame, frame.f_back
    while caller is not None and _is_in(caller, SHARED):
        called, caller = caller, caller.f_back
    if caller is None or not _is_in(caller, OURS) or _is_in(caller, CALLING):
        return True
    return _is_in(caller, PASSING) and _is_called_back(called, caller)


def _is_called_back(called: Any, caller: Any) -> bool:
    """Whether a function of PyTorch that we pass on calls the program: its hooks, a mode that it entered.

    The function itself, where Python wrote it, was counted when the program called it.
    """
    passed_on = caller.f_locals.get("function")
    return getattr(passed_on, "__code__", None) is not called.f_code


def _is_in(frame: Any, files: tuple[str, ...]) -> bool:
    return _lies_in(frame.f_code.co_filename, files)


@functools.cache
def _lies_in(name: str, files: tuple[str, ...]) -> bool:
    return any(part in name for part in files)


class Recorded(BaseException):
    """Ends the program: its step is recorded."""


class Kept(NamedTuple):
    """A step that ended: its events, the storages that it found (bytes, stream), and what was reserved then."""

    step: int
    events: list[Any]
    before: dict[int, tuple[int, int]]
    segments: list[Segment]


@dataclass
class Steps:
    """The steps of a run as they end; one of them is kept.

    A step ends where an optimizer has updated its first weights after gradients were computed. So it begins with what
    is left of one update (other groups of weights, zeroing gradients) and ends within the next one. Of several
    optimizers that update in turn, each after gradients of its own, it is the one that came last: a step has updates of
    all. Where the program marks its steps, each ends as the next mark begins another.
    """

    recorder: Recorder
    wanted: int
    stop: bool = False
    mark: str = ""
    ended: int = 0
    events: list[Any] = field(default_factory=list)
    before: dict[int, tuple[int, int]] = field(default_factory=dict)
    reserved: list[Segment] = field(default_factory=list)  # as `before`
    kept: Kept | None = None
    weights: dict[int, int] = field(default_factory=dict)  # by optimizer
    optimizers: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)  # owners by storage
    modules: dict[int, str] = field(default_factory=dict)  # paths by storage
    in_turn: list[int] = field(default_factory=list)  # optimizers, as they came
    on_host: int = 0  # updates before the first operation on the GPU
    over: int = 0  # updates since the wanted step ended
    items: int = 0  # that generators handed out
    trained: dict[int, torch.Tensor] | None = None  # weights of modules by storage
    marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        self.marks = Marks(self.mark, self.boundary)
        self.checkpointing = self.recorder.checkpointing

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Weights were updated after gradients were computed."""
        if id(optimizer) not in self.in_turn:
            self.in_turn.append(id(optimizer))
            self.ended = 0
        if id(optimizer) == self.in_turn[-1]:
            self.boundary()

    def boundary(self) -> None:
        if self.kept is not None and self.kept.step >= self.wanted:
            self._stop()
            return
        self.ended += 1
        self.trained = None
        log = Log.current
        if self.ended > 1:
            self.kept = Kept(self.ended, log.events, self.before, self.reserved)
        storages = self.recorder.storages
        self.before = dict(storages.alive)
        self.reserved = storages.allocator.segments()
        if self.ended in (self.wanted - 1, self.wanted):
            self._note_owners()
        log.events, log.backward, log.calls = [], False, 0
        self._open(self.ended == self.wanted - 1)
        if self.ended == self.wanted:
            log.open = False
            self._stop()

    def train_on_host(self) -> None:
        """Weights on the host were updated, and nothing was asked of the GPU yet."""
        self.on_host += 1
        if self.stop and self.on_host >= ON_THE_HOST:
            raise Recorded

    def begin_again(self) -> None:
        """A graph was recorded: steps before it were to warm up, and those that replay it count."""
        self.ended, self.over, self.kept, self.in_turn = 0, 0, None, []
        Log.current.open = True

    def replay(self, backward: bool, optimizers: list[torch.optim.Optimizer]) -> None:
        """A graph was replayed."""
        log = Log.current
        log.backward = log.backward or backward
        for optimizer in optimizers if log.backward else ():
            self.update(optimizer)
        log.backward = log.backward and not optimizers

    def _stop(self) -> None:
        """Ends the program, if that was asked for; what may warm up for a graph goes on until there is one."""
        self.over += 1
        warms_up = Streams.now != Streams.default and self.over <= WARMING
        if self.stop and not warms_up and torch._C._current_autograd_node() is None:
            raise Recorded

    def _open(self, wanted: bool) -> None:
        """What is asked of a step that begins: of the wanted one also memory's history and Python's calls."""
        self.recorder.storages.asking = wanted
        self.recorder.counter = self._count if wanted else None
        if wanted:
            sys.setprofile(self.recorder.counter)

    def _count(self, frame: Any, event: str, _: Any) -> None:
        """Python's calls, as a measure of the host's work."""
        if self.recorder.counter is None:
            sys.setprofile(None)  # of a thread that counted until the step ended
        elif event == "return":
            self.checkpointing.returned(frame)
        elif event == "call" and not self.checkpointing.call(frame):
            Log.current.calls += self._calls(frame)

    def _calls(self, frame: Any) -> int:
        """Calls that one which the interpreter reports counts as: none if not the program's; several items are one.

        A compiled function has none: what it was made of runs here alone.
        """
        compiled = Regions.calling is not None and not Regions.paused
        if compiled or not is_of_the_program(frame):
            return 0
        if not goes_on(frame):
            return 1
        self.items += 1
        return int(self.items % ITEMS == 0)

    def _note_owners(self) -> None:
        """Whose storages are, now that gradients are there: of the step's first moment and of its last."""
        storages, found = self.recorder.storages, owners.modules()
        for kind, tensor in owners.kinds(found, self.optimizers.values()):
            for part in parts(tensor):
                if part.device.type == "cuda":
                    self.kinds.setdefault(storages.number(part), kind)
        names = owners.paths(found)
        for number, module in storages.asked.items():
            self.modules[number] = names.get(module, "")

    def finish(self) -> None:
        sys.setprofile(None)

    def recording(self) -> dict[str, Any]:
        kept = self.kept or Kept(0, [], {}, [])
        return {
            "rank": int(os.environ["RANK"]),
            "step": kept.step,
            "steps": self.ended,
            "operations": list(self.recorder.table),
            "events": kept.events,
            "alive": {str(number): size for number, (size, _) in kept.before.items()},
            "segments": kept.segments,
            "owners": _by_value(self.kinds),
            "modules": _by_value(self.modules),
            "groups": self.recorder.works.groups,
            "described": self.recorder.works.described,
            "parameters": sum(self.weights.values()),
            "assumed": {**self.recorder.assumed, **Experts.assumed},
            "compiled": sorted(Log.compiled),
            "marks": list(self.marks.names)[:NAMED],
            "threads": host_arithmetic.threads(),
            "recomputation": True,
            "attention_said": attention.only_cudnn,
        }


def _by_value(table: Mapping[int, str]) -> dict[str, list[int]]:
    """Numbers by what they have in common; 0 and "" are nobody's."""
    numbers: dict[str, list[int]] = {}
    for number, name in sorted(table.items()):
        if number and name:
            numbers.setdefault(name, []).append(number)
    return numbers


def watch(recorder: Recorder, wanted: int, stop: bool, mark: str) -> Steps:
    """Follows the optimizers of the program from now on, or its marks.

    ``stop``: and ends it when the wanted step has ended.
    """
    steps = Steps(recorder, wanted, stop, mark)
    steps.marks.install()

    def updated(optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in steps.weights:
            groups = optimizer.param_groups
            steps.optimizers[id(optimizer)] = optimizer
            steps.weights[id(optimizer)] = sum(
                p.numel() for g in groups for p in g["params"]
            )
        if Graph.recording is not None:
            Graph.recording.steps(optimizer)
        elif not recorder.table:
            steps.train_on_host()
        elif Log.current.backward and not mark:
            Log.current.backward = False
            steps.update(optimizer)

    def begins(*_: Any) -> None:
        recorder.wrote = None  # who has an optimizer updates nothing by hand

    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(updated)
    recorder.wrote = functools.partial(_wrote, steps)
    Graph.recorded, Graph.replayed = steps.begin_again, steps.replay
    _follow_backward(recorder, steps)
    return steps


def _wrote(steps: Steps, function: Any, arguments: Any, options: Any) -> None:
    """Takes what a program writes to weights with gradients for an update, where no optimizer of PyTorch's has any."""
    tensors = values.written(function, arguments, options)
    if not tensors or steps.mark:
        return
    number = steps.recorder.storages.number
    if steps.trained is None:
        # Walks all objects: once a step, since what has gradients was there before backward.
        found = (m.parameters(recurse=False) for m in owners.modules())
        steps.trained = {number(each): each for each in chain.from_iterable(found)}
    places = {*map(number, tensors)} - {0}
    weights = [steps.trained[place] for place in places & steps.trained.keys()]
    if any(map(_has_gradient, (*weights, *filter(number, tensors)))):
        updated = filter(_has_gradient, steps.trained.values())
        steps.weights[0] = sum(each.numel() for each in updated)
        Log.current.backward = False
        steps.boundary()


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None


#: Place of `create_graph` among the arguments of `_engine_run_backward` (torch/autograd/graph.py).
CREATE_GRAPH = 3


def _follow_backward(recorder: Recorder, steps: Steps) -> None:
    """Backward, on a thread of its own, knows the program's names; then what it asked of other ranks is waited for.

    Functions that backward calls, such as those of checkpointed layers, name devices as the program does, and the
    C++ of DistributedDataParallel waits for nothing before its end.
    """
    engine = torch.autograd.graph._engine_run_backward

    def run(*arguments: Any, **options: Any) -> Any:
        # A checkpointed layer may run a backward within backward.
        before, Log.twice = Log.twice, bool(arguments[CREATE_GRAPH])
        try:
            with Names():
                result = engine(*arguments, **options)
        finally:
            Log.twice = before
        recorder.works.settle()
        if steps.over and torch._C._current_autograd_node() is None:
            steps._stop()  # C++ does not let an update within backward end the program
        return result

    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run
