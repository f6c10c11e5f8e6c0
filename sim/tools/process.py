"""The process of a command: its streams, which may be closed, full or of a poor encoding; garbage; its exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

#: What writing to a full disk, a quota, or a device that went away fails with.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF)
# Objects made between two searches for cycles of garbage: Python's 700 cost a sixth of a prediction, which has few, and
# 100,000 a twentieth of one with many events.
BETWEEN_COLLECTIONS = 200_000


def prepare() -> None:
    """Makes both usable: a closed one leads nowhere, and signs that an encoding lacks become question marks.

    UTF-8 lacks halves of pairs, which JSON can say (`\\ud83d`): they are printed as it says them.
    """
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            lacks = "backslashreplace" if _is_unicode(stream.encoding) else "replace"
            stream.reconfigure(errors=lacks)


def cannot_be_written(error: OSError) -> bool:
    """Whether it is stdout that could not be written: of files the error names the path."""
    return error.errno in UNWRITABLE and error.filename is None


def close_stdout() -> None:
    """What Python still writes when it ends goes nowhere, instead of failing again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")


def collect_rarely() -> None:
    """Lets a process search for cycles of garbage only once in many objects."""
    gc.set_threshold(BETWEEN_COLLECTIONS)


def keep_the_exit_code() -> None:
    """The process ends with the code that it asks for, wherever the signal met it.

    `python -m` kills itself with SIGINT at its end if the signal came while a string was executed, even where the
    interrupt was caught (CPython, pythonrun.c, `run_eval_code_obj`); dataclasses are made by such strings. A signal
    that is blocked does not end the process, and then Python returns the code. It is blocked at the very end: until
    then a second Ctrl-C stops what takes too long.
    """
    if hasattr(signal, "pthread_sigmask"):
        atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})


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
