"""Room for calls on Python's own stack, so that no loop begins where a piece of it ends.

CPython keeps the frames of calls in pieces of 16 KiB, asks the system for one when a call needs it and gives it back
when that call returns (`push_chunk` and `_PyThreadState_PopFrame` in Python/pystate.c). A loop whose calls begin right
at the end of a piece does both each time: at one depth of about 120 a run took fourteen times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# Words of a frame of 32 KiB: Python takes a piece of twice as much for it, and calls have the other half.
WORDS = 4096


def _call(call: Callable[[], Any]) -> Any:
    return call()


_call.__code__ = _call.__code__.replace(co_stacksize=WORDS)


def with_room(function: Callable[P, R]) -> Callable[P, R]:
    """The function, begun on a piece of the stack that has room for some hundred nested calls."""

    @wraps(function)
    def begun(*args: P.args, **kwargs: P.kwargs) -> R:
        made: R = _call(partial(function, *args, **kwargs))
        return made

    return begun
