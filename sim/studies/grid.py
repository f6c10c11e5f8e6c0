"""The runs of a sweep: every combination of a grid's values, each under the hash of all that it depends on."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prestep.sim import __version__, files
from prestep.sim.errors import InputError, Mistake
from prestep.sim.strict import flatten


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
    grid: dict[str, tuple[str, ...]] = {}
    mistakes = []
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        listed = tuple(_split(values))
        if not equals or not key or not all(listed):
            mistakes.append((f'"{text}"', "KEY=VALUE,VALUE,..."))
        elif key in grid:
            mistakes.append((f"{key} twice", "every key once"))
        grid[key] = tuple(dict.fromkeys(listed))
    if mistakes:
        raise InputError(Mistake("command line", option, *told) for told in mistakes)
    return grid


def _split(text: str) -> Iterator[str]:
    """Values between commas; commas within brackets or quotes do not divide. At least one."""
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
    runs: dict[str, Spec] = {}
    for values in itertools.product(*grid.values()):
        changes = {**base, **dict(zip(grid, values, strict=True))}
        key = _key(digest, changes, _digests(scenario.parent, changes.values()))
        runs.setdefault(key, Spec(key, str(scenario), tuple(changes.items())))
    return list(runs.values())


def _key(digest: str, changes: Mapping[str, str], digests: Sequence[str]) -> str:
    """Hash of a run: of its scenario's files, its changes, and the files that these name."""
    text = json.dumps([__version__, digest, sorted(changes.items()), *digests])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _files(scenario: Path) -> str:
    """Hash of a scenario's file and of the files that it names, and that these name; of another file's bytes.

    "" for a file that cannot be read: what is wrong with it is said where it is.
    """
    try:
        content = scenario.read_bytes()
    except OSError:
        return ""
    try:
        tomllib.loads(content.decode())
    except ValueError:  # a recorded program, for example
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(
        b"\0".join(path.read_bytes() for path in _named(scenario))
    ).hexdigest()


def _named(path: Path) -> list[Path]:
    """A file and those that it names, such as a cluster, its kernels, or what it extends; each once."""
    named: dict[Path, None] = {}
    todo = [path]
    while todo:
        path = todo.pop(0)
        if path not in named and path.is_file():
            named[path] = None
            todo += [path.parent / text for text in _texts(path)]
    return list(named)


def _texts(path: Path) -> list[str]:
    """Texts in a TOML file that may be names of files; none of another file."""
    if path.suffix != ".toml":
        return []
    try:
        table = dict(flatten(tomllib.loads(files.written_text(path))))
    except (OSError, ValueError):
        return []
    texts = [value for value in table.values() if isinstance(value, str)]
    return [text for text in texts if 0 < len(text) < 256]


def _digests(folder: Path, values: Iterable[str]) -> list[str]:
    """Hashes of the files that changes name, such as `--grid cluster.file=a.toml,b.toml`."""
    paths = [folder / value for value in values if 0 < len(value) < 256]
    return [_files(path) for path in paths if path.is_file()]
