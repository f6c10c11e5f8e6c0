"""Worker processes work as the process that started them does, and end with it, however that ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, get_context
from typing import Any, ParamSpec, TypeVar

from prestep.sim.threads import THREADS, sum_alone
from prestep.sim.tools.process import collect_rarely

P = ParamSpec("P")
T = TypeVar("T")


class Workers(ProcessPoolExecutor):
    """Processes that do prestep's work, and leave Ctrl-C to the process that started them.

    Parameters
    ----------
    jobs : int
        Processes at a time.
    method : str
        "spawn", or "forkserver" for processes of a server that has imported what a prediction needs (`start_server`).
        Never "fork": Arrow and BLAS have threads of their own, and a fork of one with threads may hang.
    """

    def __init__(self, jobs: int, method: str = "spawn") -> None:
        super().__init__(jobs, mp_context=get_context(method), initializer=begin)

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        # Processes are started as tasks come, and take over which signals their starter ignores.
        with _deaf_to_interrupts(), _without_script():
            try:
                return super().submit(fn, *args, **kwargs)
            except (ConnectionError, EOFError) as error:
                raise BrokenProcessPool("the server of processes died") from error


def start_server() -> None:
    """Starts the server of "forkserver", which imports what a prediction needs, once for all processes."""
    get_context("forkserver").set_forkserver_preload(["prestep.sim.tools.warm"])
    with _one_thread(), _deaf_to_interrupts():
        forkserver.ensure_running()


def begin() -> None:
    """Initializer of workers: they add and collect garbage as the command does, and end with it."""
    sum_alone()
    collect_rarely()
    _end_with_parent()


def _end_with_parent() -> None:
    """A process that is killed takes its workers along, which it cannot do itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that start meanwhile do linear algebra on one thread: two with two each wait for each other's."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Processes that start meanwhile do not run the user's script again, guarded by `__main__` or not.

    Python runs it to find what was pickled from there; all that these processes do is prestep's own.
    """
    main = vars(sys.modules["__main__"])
    before: dict[str, Any] = {
        name: main.pop(name) for name in ("__file__", "__spec__") if name in main
    }
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that start meanwhile ignore Ctrl-C: this one hears it too, and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
