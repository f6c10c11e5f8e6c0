"""Who makes the runs of a sweep: processes, threads, or a Dask cluster, all as `concurrent.futures.Executor`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.extras import MissingPackage
from prestep.sim.tools.workers import Workers, start_server

RETRIES = 3  # of runs whose worker died


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
        start_server()  # which imports while the scenario is read here
        return lambda: Workers(jobs, "forkserver")
    file = name.removeprefix("dask://")
    if file == name or not file:
        raise InputError.of(
            "command line",
            "--executor",
            f'"{name}"',
            "processes, threads or dask://SCHEDULER_FILE",
        )
    if not Path(file).is_file():
        raise InputError.of(
            "command line",
            "--executor",
            f"no file {file}",
            "the file of `dask scheduler --scheduler-file`",
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
