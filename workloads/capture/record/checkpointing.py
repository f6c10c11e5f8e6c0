"""What of PyTorch has a price of its own: checkpointed regions, tensors that their hooks see, DDP's forward passes.

What its Python does for them is not counted as calls of the program's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint as pytorch

from prestep.workloads.capture.record.regions import Regions
from prestep.workloads.capture.record.streams import Log

#: Kinds of events; "again": in backward, where a region runs again.
REGION, SAVED, REPLICA = "checkpoint", "saved", "ddp"
FORWARD, AGAIN = 0, 2


def _plain(function: Any) -> FunctionType:
    """A function without its decorators."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    assert isinstance(function, FunctionType)
    return function


def _inner(code: CodeType, name: str) -> Iterator[CodeType]:
    """Functions of a name that are defined in another one."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_name == name:
                yield each
            yield from _inner(each, name)


def _events() -> dict[CodeType, tuple[str, int] | None]:
    """Functions of PyTorch's with the event that a call of each is; None: they only belong to another one's."""
    generator = _plain(pytorch._checkpoint_without_reentrant_generator).__code__
    hook, again = (
        each.__init__.__code__
        for each in (pytorch._checkpoint_hook, pytorch._recomputation_hook)
    )
    classic = pytorch.CheckpointFunction
    found: dict[CodeType, tuple[str, int] | None] = {
        _plain(pytorch.checkpoint).__code__: (REGION, FORWARD),
        DistributedDataParallel._pre_forward.__code__: (REPLICA, FORWARD),
        classic.forward.__code__: None,
        classic.backward.__code__: (REGION, AGAIN),
    }
    found |= dict.fromkeys(_inner(generator, "recompute_fn"), (REGION, AGAIN))
    found |= dict.fromkeys(_inner(hook, "pack_hook"), (SAVED, FORWARD))
    found |= dict.fromkeys(_inner(again, "pack_hook"), (SAVED, AGAIN))
    for each in (hook, again):
        found |= dict.fromkeys(_inner(each, "unpack_hook"))
    return found


EVENTS = _events()
#: Those that call what is checkpointed, and where functions lie that they call beside it.
CALLING = frozenset(
    code
    for code, event in EVENTS.items()
    if code is pytorch.CheckpointFunction.forward.__code__
    or (event is not None and event[0] == REGION)
)
BESIDE = ("/contextlib.py", "/torch/")
REGIONS_OWN = "/torch/nn/"  # modules that are checkpointed


class Checkpointing:
    """Follows calls and returns of Python functions: which are checkpointing's own."""

    def __init__(self) -> None:
        self._running: list[
            tuple[Any, bool]
        ] = []  # frames, and whether calls there count
        # A hook's saved tensor, which autograd detaches in C++, by an operator only where a mode looks on.
        self.handed_out = False

    @property
    def inside(self) -> bool:
        """Whether what runs now is checkpointing's own."""
        return bool(self._running) and not self._running[-1][1]

    def call(self, frame: Any) -> bool:
        """Whether a call is checkpointing's own; notes the event that it is."""
        code = frame.f_code
        if code in EVENTS or self._wraps_a_hook(frame):
            event = EVENTS.get(code)
            if event == (REGION, FORWARD) and Regions.cuts is not None:
                Regions.cuts.whole = True
            if event == (SAVED, FORWARD) and Regions.calling is not None:
                # A compiled function saves its tensors when it has run: a region with one runs again to its end.
                frame.f_locals["frame"].early_stop = False
            if event is not None and Regions.written is None:
                Log.current.notice(*event)
            self._running.append((frame, False))
            return True
        if not self.inside:
            return False
        if self._is_the_region(frame):
            self._running.append((frame, True))
            return False
        return True

    def returned(self, frame: Any) -> None:
        if self._running and self._running[-1][0] is frame:
            self._running.pop()
            self.handed_out = frame.f_code.co_name == "unpack_hook"

    def _wraps_a_hook(self, frame: Any) -> bool:
        """Whether a function is what keeps a hook away from the compiler."""
        if frame.f_code.co_name != "_fn":
            return False
        wrapped = getattr(frame.f_locals.get("fn"), "__code__", None)
        return wrapped is not None and EVENTS.get(wrapped) == (SAVED, AGAIN)

    def _is_the_region(self, frame: Any) -> bool:
        """Whether a call is that of what is checkpointed, or of what autograd runs for it."""
        back = frame.f_back
        if back is None:
            return False
        if back.f_code.co_name == "_engine_run_backward":
            return True
        file = frame.f_code.co_filename
        beside = any(part in file for part in BESIDE) and REGIONS_OWN not in file
        return back.f_code in CALLING and not beside
