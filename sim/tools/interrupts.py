"""The exit code of a command that Ctrl-C stopped."""

from __future__ import annotations

import atexit
import signal


def keep_the_exit_code() -> None:
    """The process ends with the code that it asks for, wherever the signal met it.

    `python -m` kills itself with SIGINT at its end if the signal came while a string was executed, even where the
    interrupt was caught (CPython, pythonrun.c, `run_eval_code_obj`); dataclasses are made by such strings. A signal
    that is blocked does not end the process, and then Python returns the code. It is blocked at the very end: until
    then a second Ctrl-C stops what takes too long.
    """
    if hasattr(signal, "pthread_sigmask"):
        atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
