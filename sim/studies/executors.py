"""Who makes the runs of a sweep: processes, threads, or a Dask cluster, all as `concurrent.futures.Executor`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake
from sim.extras import MissingPackage
from sim.threads import THREADS
from sim.tools.workers import begin

RETRIES = 3  # of runs whose worker died


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Processes that start meanwhile do linear algebra on one thread: two with two each wait for each other's."""
    kept = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that start meanwhile ignore Ctrl-C: this one hears it too, and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)


def executor_of(name: str, jobs: int) -> Callable[[], AbstractContextManager[Executor]]:
    """What makes the executor: `processes`, `threads`, or `dask://FILE` with a scheduler's file.

    Raises
    ------
    InputError
        For another name, or a scheduler's file that is not there.
    MissingPackage
        If dask.distributed is not installed.
    """

    if name == "threads":
        return lambda: ThreadPoolExecutor(jobs)
    if name == "processes":
        # Fresh processes: a fork of one with threads (numpy's) may hang. They come from a server that has imported what
        # a prediction needs once for all of them, while the scenario is read here.
        context = get_context("forkserver")
        context.set_forkserver_preload(["sim.tools.warm"])
        with one_thread(), _deaf_to_interrupts():
            forkserver.ensure_running()
        return lambda: ProcessPoolExecutor(jobs, mp_context=context, initializer=begin)
    file = name.removeprefix("dask://")
    if file == name or not file:
        raise InputError(
            Mistake(
                "command line",
                "--executor",
                f'"{name}"',
                "processes, threads or dask://SCHEDULER_FILE",
            )
        )
    if not Path(file).is_file():
        raise InputError(
            Mistake(
                "command line",
                "--executor",
                f"no file {file}",
                "the file of `dask scheduler --scheduler-file`",
            )
        )
    try:
        from distributed import Client
    except ImportError:
        raise MissingPackage("distributed") from None
    return lambda: _dask(Client(scheduler_file=file))


@contextlib.contextmanager
def _dask(client: Any) -> Iterator[Executor]:
    """Its executor; a prediction is a pure function, so a run whose worker died may be run again."""
    with client, client.get_executor(pure=False, retries=RETRIES) as made:
        yield made
