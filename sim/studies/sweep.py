"""Sweeps: a grid of changes of a scenario, each predicted once, on processes, threads or a Dask cluster.

A run's key is the hash of what it depends on: prestep's version, the scenario's file, the files that it names, and
its changes. Its result is a file of that name, written whole or not at all; so a sweep can be stopped anywhere and
started again, and does what is missing. `results.parquet` has a row for every run.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from prestep.sim import files
from prestep.sim.analysis.arrow import column
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.sim.studies.executors import RETRIES
from prestep.sim.studies.grid import Spec

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

Row = dict[str, Any]
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
SUM = "sum"  # of all else that a run's file says
#: Columns of results.parquet after those of the grid (SI units); `error` is "" for a run that was predicted.
COLUMNS: dict[str, str] = files.beside(__file__)["columns"]


@dataclass(frozen=True)
class Shard:
    """One of so many parts of a sweep, from 1 on: every machine of a Slurm array does one."""

    number: int
    of: int


def _run(spec: Spec) -> Row:
    """A worker's task. The process that hands tasks out predicts nothing, and starts without the simulator."""
    from prestep.sim.studies.swept_run import run_one

    return run_one(spec)


def sweep(
    wanted: Sequence[Spec],
    folder: Path,
    executor: Callable[[], AbstractContextManager[Executor]],
    jobs: int = 2,
    progress: Callable[[int, int], None] | None = None,
    shard: Shard | None = None,
) -> Path | None:
    """Runs what is not in `folder` yet; returns the path of results.parquet. `progress` is told (done, all).

    Of a `shard` only its runs, beside other shards at work; None while runs of others are missing.

    Raises
    ------
    InputError
        If another sweep works in the folder, or nothing can be written there.
    PrestepError
        If workers die again and again.
    """
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    report = progress or (lambda done, of: None)
    every = wanted
    if shard is not None:
        wanted = wanted[shard.number - 1 :: shard.of]
    with _alone(folder, "" if shard is None else f"-{shard.number}-{shard.of}"):
        left = _missing(wanted, folder)
        report(len(wanted) - len(left), len(wanted))
        for _ in range(RETRIES):
            if not left:
                break
            with contextlib.suppress(BrokenProcessPool), executor() as pool:
                for done in _written(pool, left, folder, 4 * jobs):
                    report(len(wanted) - len(left) + done, len(wanted))
            left = _missing(left, folder)
        if left:
            raise PrestepError(
                f"{folder}: workers died {RETRIES} times; {len(left)} runs are left, such as {left[0].changes}"
            )
        return None if _missing(every, folder) else _table(every, folder)


def _file(folder: Path, key: str) -> Path:
    return folder / "runs" / f"{key}.json"


def _missing(wanted: Sequence[Spec], folder: Path) -> list[Spec]:
    """The runs that the folder does not have, or has damaged."""
    return [spec for spec in wanted if _figures(spec, folder) is None]


def _figures(spec: Spec, folder: Path) -> Row | None:
    """What a run wrote; None where it has not, or where its file is empty, not its own, or changed since."""
    try:
        row = json.loads(_file(folder, spec.key).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or row.get("key") != spec.key:
        return None
    return row if row.pop(SUM, None) == _sum(row) else None


def _sum(row: Row) -> str:
    """What tells a row as it was written from one that was changed since."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def _written(
    pool: Executor, left: Sequence[Spec], folder: Path, most: int
) -> Iterator[int]:
    """Writes rows as they come; yields how many it has written."""
    for done, row in enumerate(_finished(pool, left, most), 1):
        whole = {**row, SUM: _sum(row)}
        files.write_text(_file(folder, row["key"]), json.dumps(whole))
        yield done


def _finished(pool: Executor, left: Sequence[Spec], most: int) -> Iterator[Row]:
    """Rows as they come; at most so many are handed out at once, so that a stop loses little."""
    todo, out = iter(left), set[Future[Row]]()
    while True:
        following = itertools.islice(todo, most - len(out))
        out |= {pool.submit(_run, spec) for spec in following}
        if not out:
            return
        done, out = wait(out, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


@contextlib.contextmanager
def _alone(folder: Path, part: str = "") -> Iterator[IO[str]]:
    """Nobody else sweeps this part into the folder meanwhile; the system lets go of the lock when the process ends."""
    lock = folder / f".lock{part}"
    try:
        # A link is not followed: the file that it names is somebody else's.
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
    except OSError as error:
        raise _unusable(lock, error) from None
    with os.fdopen(handle) as file:
        try:
            _lock(file)
        except OSError:
            busy = "another sweep works here"
            mistake = Mistake(str(folder), "", busy, "a folder of its own")
            raise InputError(mistake) from None
        yield file


def _lock(file: IO[str]) -> None:
    """Locks a file for this process; raises OSError where another has it."""
    if sys.platform == "win32":
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unusable(path: Path, error: OSError) -> InputError:
    """A place that cannot be written, and why."""
    expected = "a place that can be written"
    return InputError.of(str(path), "", error.strerror or str(error), expected)


def _table(wanted: Sequence[Spec], folder: Path) -> Path:
    """results.parquet: a row for every run, its changes as text columns first."""
    fields = _fields(wanted)
    rows = [_row(spec, folder) for spec in wanted]
    arrays = [column([row[field.name] for row in rows], field.type) for field in fields]
    schema = pa.schema(fields, metadata={"prestep.sweep": "1", "units": "SI"})
    path = folder / "results.parquet"
    # Arrow takes names in UTF-8 alone: it is given an open file.
    with files.replacing(path) as beside, beside.open("wb") as file:
        whole = pa.Table.from_arrays(arrays, schema=schema)
        pq.write_table(whole, file, compression="zstd")
    return path


def rows_of(path: Path) -> list[Row]:
    """The rows of a results.parquet."""
    # Arrow takes names in UTF-8 alone, so it is given bytes. `read_table` would import pandas.
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
    # Threads of Arrow that still run when a short command ends abort it.
    rows: list[Row] = file.read(use_threads=False).to_pylist()
    return rows


def _fields(wanted: Sequence[Spec]) -> list[pa.Field]:
    """Columns of changes, then `COLUMNS`."""
    keys = dict.fromkeys(key for spec in wanted for key, _ in spec.changes)
    changes = [pa.field(f"set.{key}", pa.string()) for key in keys]
    figures = [
        pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()
    ]
    return changes + figures


def _row(spec: Spec, folder: Path) -> Row:
    figures = _figures(spec, folder)
    if figures is None:
        raise PrestepError(f"{folder}: the run {spec.key} went away meanwhile")
    changes = {f"set.{key}": value for key, value in spec.changes}
    return {**dict.fromkeys(COLUMNS), **figures, **changes}
