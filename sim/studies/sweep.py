"""Sweeps: a grid of changes of a scenario, each predicted once, on processes, threads or a Dask cluster.

A run's key is the hash of what it depends on: prestep's version, the scenario's file, the files that it names, and
its changes. Its result is a file of that name, written whole or not at all; so a sweep can be stopped anywhere and
started again, and does what is missing. `results.parquet` has a row for every run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import itertools
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sim import __version__
from sim.analysis.arrow import column
from sim.errors import InputError, Mistake, PrestepError
from sim.predict import predict
from sim.spec.load import load_scenario
from sim.strict import flatten
from sim.studies.executors import RETRIES, executor_of

__all__ = [
    "COLUMNS",
    "Row",
    "Spec",
    "executor_of",
    "grid_of",
    "run_one",
    "specs",
    "sweep",
    "write_whole",
]

Row = dict[str, Any]
#: Columns of results.parquet after those of the grid (SI units); `error` is "" for a run that was predicted.
COLUMNS: dict[str, str] = {
    "key": "string",
    "error": "string",
    "step_time": "double",
    "tokens_per_second_per_gpu": "double",
    "mfu": "double",
    "tflops_per_gpu": "double",
    "gpus": "int64",
    "peak_memory": "double",
    "fits": "bool",
    "cluster": "string",
    "model": "string",
    "layout": "string",
    "compute": "double",
    "exposed_communication": "double",
    "bubble": "double",
    "io": "double",
    "host": "double",
    "idle": "double",
    "grounded": "double",
}


@dataclass(frozen=True)
class Spec:
    """One run of a sweep: its key, its scenario's path and its changes (key -> value)."""

    key: str
    scenario: str
    changes: tuple[tuple[str, str], ...]


def grid_of(texts: Sequence[str], option: str = "--grid") -> dict[str, tuple[str, ...]]:
    """`training.micro_batch=1,2,4` -> its values; commas within brackets or quotes do not divide.

    Raises
    ------
    InputError
        For a text without key or values, or a key given twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    mistakes = []
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        listed = tuple(_split(values))
        if not equals or not key or not all(listed) or not listed:
            mistakes.append(
                Mistake("command line", option, f'"{text}"', "KEY=VALUE,VALUE,...")
            )
        elif key in found:
            mistakes.append(
                Mistake("command line", option, f"{key} twice", "every key once")
            )
        found[key] = tuple(dict.fromkeys(listed))
    if mistakes:
        raise InputError(mistakes)
    return found


def _split(text: str) -> Iterator[str]:
    depth, quote, begin = 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()


def specs(
    scenario: Path, grid: Mapping[str, Sequence[str]], overrides: Sequence[str] = ()
) -> list[Spec]:
    """Every combination of the grid's values, on top of the overrides, in the grid's order; each once."""
    base: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        base[key.strip()] = value.strip()
    digest = _files(scenario)
    made: dict[str, Spec] = {}
    for values in itertools.product(*grid.values()):
        changes = {**base, **dict(zip(grid, values, strict=True))}
        told = [
            __version__,
            digest,
            sorted(changes.items()),
            *_digests(scenario.parent, changes.values()),
        ]
        text = json.dumps(told)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        made.setdefault(key, Spec(key, str(scenario), tuple(changes.items())))
    return list(made.values())


def _files(scenario: Path) -> str:
    """Hash of a scenario's file and of the files that it names, and that these name."""
    try:
        tomllib.loads(scenario.read_bytes().decode())
    except (OSError, ValueError):
        return ""  # what is wrong with it is said where it is read
    return hashlib.sha256(
        b"\0".join(path.read_bytes() for path in _named(scenario))
    ).hexdigest()


def _named(path: Path) -> list[Path]:
    """A file and those that it names, such as a cluster, its kernels, or what it extends; each once."""
    found: dict[Path, None] = {}
    todo = [path]
    while todo:
        path = todo.pop(0)
        if path in found or not path.is_file():
            continue
        found[path] = None
        if path.suffix != ".toml":
            continue
        try:
            told = dict(flatten(tomllib.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError):
            continue
        todo += [
            path.parent / text
            for text in told.values()
            if isinstance(text, str) and 0 < len(text) < 256
        ]
    return list(found)


def _digests(folder: Path, values: Iterable[str]) -> list[str]:
    """Hashes of the files that changes name, such as `--grid cluster.file=a.toml,b.toml`."""
    paths = [folder / value for value in values if 0 < len(value) < 256]
    return [
        _files(path) or hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    ]


def run_one(spec: Spec) -> Row:
    """Predicts one run; a mistake in it is its `error`, so that one bad corner of a grid does not end the sweep."""
    try:
        result = predict(
            load_scenario(
                spec.scenario, [f"{key}={value}" for key, value in spec.changes]
            )
        )
    except PrestepError as error:
        return {"key": spec.key, "error": str(error)}
    told, verdict = result.breakdown, result.out_of_memory
    said = result.scenario
    return {
        "key": spec.key,
        "error": "",
        "step_time": result.step_time,
        "mfu": result.mfu,
        "tokens_per_second_per_gpu": result.tokens_per_second_per_gpu,
        "tflops_per_gpu": result.tflops_per_gpu,
        "gpus": said.get("gpus"),
        "cluster": said.get("cluster"),
        "model": said.get("model"),
        "layout": said.get("layout"),
        "peak_memory": None if verdict is None else verdict.needed,
        "fits": None if verdict is None else verdict.fits,
        **{
            share: told.get(share, 0.0)
            for share in ("compute", "bubble", "io", "host", "idle")
        },
        "exposed_communication": sum(
            s for share, s in told.items() if share.startswith("exposed_")
        ),
        "grounded": sum(
            result.evidence.get(grade, 0.0) for grade in ("measured", "fitted")
        ),
    }


def sweep(
    wanted: Sequence[Spec],
    folder: Path,
    executor: Callable[[], AbstractContextManager[Executor]],
    jobs: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Runs what is not in `folder` yet; returns the path of results.parquet. `progress` is told (done, all).

    Raises
    ------
    InputError
        If another sweep works in the folder.
    PrestepError
        If workers die again and again.
    """
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        left = [spec for spec in wanted if not (runs / f"{spec.key}.json").exists()]
        tell = progress or (lambda done, of: None)
        through = len(wanted) - len(left)
        tell(through, len(wanted))
        for _ in range(RETRIES):
            if not left:
                break
            with contextlib.suppress(BrokenProcessPool), executor() as pool:
                for done in _finished(pool, left, 4 * jobs):
                    write_whole(runs / f"{done['key']}.json", json.dumps(done).encode())
                    through += 1
                    tell(through, len(wanted))
            left = [spec for spec in left if not (runs / f"{spec.key}.json").exists()]
        if left:
            raise PrestepError(
                f"{folder}: workers died {RETRIES} times; {len(left)} runs are left, such as {left[0].changes}"
            )
        return _table(wanted, folder)


def _finished(pool: Executor, left: Sequence[Spec], most: int) -> Iterator[Row]:
    """Rows as they come; at most so many are handed out at once, so that a stop loses little."""
    todo, out = iter(left), set[Future[Row]]()
    while True:
        out |= {
            pool.submit(run_one, spec)
            for spec in itertools.islice(todo, most - len(out))
        }
        if not out:
            return
        done, out = wait(out, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[IO[str]]:
    """Nobody else sweeps into the folder meanwhile; the system lets go of the lock when the process ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                Mistake(
                    str(folder), "", "another sweep works here", "a folder of its own"
                )
            ) from None
        yield file


def write_whole(path: Path, data: bytes) -> None:
    """The file with all of `data`, or as it was: written beside and moved."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    os.replace(beside, path)


def _table(wanted: Sequence[Spec], folder: Path) -> Path:
    """results.parquet: a row for every run, its changes as text columns first."""
    axes = list(dict.fromkeys(key for spec in wanted for key, _ in spec.changes))
    rows = []
    for spec in wanted:
        found = json.loads((folder / "runs" / f"{spec.key}.json").read_bytes())
        rows.append(
            {
                **dict.fromkeys(COLUMNS),
                **found,
                **{f"set.{key}": value for key, value in spec.changes},
            }
        )
    fields = [pa.field(f"set.{key}", pa.string()) for key in axes]
    fields += [
        pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()
    ]
    arrays = [column([row[field.name] for row in rows], field.type) for field in fields]
    table = pa.Table.from_arrays(
        arrays, schema=pa.schema(fields, metadata={"prestep.sweep": "1", "units": "SI"})
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    path = folder / "results.parquet"
    write_whole(path, buffer.getvalue())
    return path
