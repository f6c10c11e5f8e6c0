"""What a program reads of data on the device: numbers, answers, copies; where nobody computes them, stand-ins."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from prestep.workloads.capture.record import values
from prestep.workloads.capture.record.streams import Log, Streams

aten = torch.ops.aten
NUMBERS = (
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
)
#: Answers of no to one line in a row, after which it is told yes once, and from then on in turns.
PATIENCE = 64
#: Files between a program and the answer.
PASSING = ("/capture/record/", "/torch/_", "/torch/overrides", "/torch/utils/_")
#: Writes an operation down, with what it returns.
Write = Callable[[Any, Any, Any, Any, None], None]


def to_host(function: Any, args: Any, options: Any) -> bool:
    """Whether an operation copies a tensor of the device to the host."""
    if function is aten.copy_.default:
        return bool(args[0].device.type == "cpu")
    return function is aten._to_copy.default and str(options.get("device")) == "cpu"


class Reads:
    """Answers the program; ``assumed`` counts what nobody knows, by what asked."""

    def __init__(self, assumed: Counter[str], write: Write) -> None:
        self.assumed, self.write = assumed, write
        self._asking: tuple[int, Any, int] | None = None
        self._refused = (
            0  # times that one line was told no since its last yes, within a step
        )
        self._patience = PATIENCE

    def number(self, function: Any, args: Any) -> Any:
        """The host waits for a number, or an answer, of the device."""
        Log.current.add("read", Streams.now.number, function._schema.name)
        return self.answer(function, args)

    def answer(self, function: Any, args: Any) -> Any:
        """A number, or an answer; of weights on the host, too, which are not computed either."""
        known = [values.value_of(t) for t in args if isinstance(t, torch.Tensor)]
        unknown = any(value is None for value in known)
        if unknown or any(map(values.is_assumed, args)):
            self.assumed[function._schema.name.replace("::", ".")] += 1
        if not unknown:
            return function(*known)
        if function is aten.equal.default:
            return False
        answer = function(values.stand_in(args[0]))
        return self._patient() if answer is False else answer

    def _patient(self) -> bool:
        """No, unless a line asks again and again: it waits for a yes, as loops that reject samples do.

        A yes may also be what keeps it asking (a loop until nothing is out of bounds), so that the next answer is no.
        """
        asking = id(Log.current.events), *_line()
        if asking != self._asking:
            self._asking, self._refused, self._patience = asking, 0, PATIENCE
        self._refused += 1
        if self._refused <= self._patience:
            return False
        self._refused, self._patience = 0, 1
        return True

    def copied(self, function: Any, args: Any, options: Any) -> Any:
        """A tensor on the host; who does not ask for a copy beside the host waits for it."""
        into = function is aten.copy_.default
        source = args[1] if into else args[0]
        value = values.value_of(source)
        if value is None or values.is_assumed(source):
            self.assumed["copy to the host"] += 1
        if value is None:
            value = values.stand_in(source)
        result = _put(args[0], value) if into else function(value, **options)
        self.write(function, args, options, result, None)
        if not _is_beside(args, options):
            name = function._schema.name
            Log.current.add("waits_for_copy", Streams.now.number, name)
        return result


def _line() -> tuple[Any, int]:
    """Code and line of the program that asks."""
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and any(
        part in frame.f_code.co_filename for part in PASSING
    ):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def _put(target: Any, value: Any) -> Any:
    return target if isinstance(target, FakeTensor) else target.copy_(value)


def _is_beside(args: Any, options: Any) -> bool:
    """Whether the host goes on while a tensor is copied to it: its memory counts as pinned."""
    return bool(options.get("non_blocking") or (len(args) > 2 and args[2]))
