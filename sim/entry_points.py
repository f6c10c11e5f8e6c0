"""Entry points: what installed distributions, and the extensions in prestep's own rooms, add to it.

Every distribution lists them in `entry_points.txt` of its metadata, under groups such as `prestep.commands`. An
extension that comes with prestep has the same file in its room, so that removing the room removes all it declares.

`importlib.metadata` reads the former too, but takes a third of the time of `prestep --help` to be imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FILE = "entry_points.txt"
PREFIX = "prestep."
#: Where prestep's packages lie, and those that have rooms.
HOME = Path(__file__).parents[1]
PACKAGES = ("sim", "topologies", "workloads", "validation")
OWN = "prestep's "
_METADATA = (".dist-info", ".egg-info")


class EntryPoint(NamedTuple):
    """A line of an `entry_points.txt`.

    Attributes
    ----------
    group, name, value : str
        As the line says: `name = value` under `[group]`. A value is a module, or one of its objects: `module:object`.
    source : str
        The distribution and its version ("toy-prestep 1.0"), or the room of prestep ("prestep's sim/rl").
    """

    group: str
    name: str
    value: str
    source: str

    @property
    def module(self) -> str:
        """The module that the value names, or in which its object is."""
        return self.value.partition(":")[0]

    @property
    def attribute(self) -> str:
        """The object of the module that the value names; "" of a module."""
        return self.value.partition(":")[2]

    @property
    def foreign(self) -> bool:
        """Whether it belongs to another distribution."""
        return not self.source.startswith(OWN)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Returns the entry points of a group, sorted by name.

    Examples
    --------
    >>> entry_points("prestep.of-nobody")
    ()
    """
    return _by_group(tuple(sys.path)).get(group, ())


def sources() -> dict[str, list[EntryPoint]]:
    """Returns everything that adds to prestep with its entry points: rooms and distributions, sorted."""
    by_source: dict[str, list[EntryPoint]] = {}
    for entries in _by_group(tuple(sys.path)).values():
        for entry in entries:
            by_source.setdefault(entry.source, []).append(entry)
    return dict(sorted(by_source.items()))


@functools.cache  # of one path: a process that changes it, as tests do, sees what is there
def _by_group(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    groups: dict[str, list[EntryPoint]] = {}
    for entry in (*_of_rooms(), *_of_distributions(path)):
        groups.setdefault(entry.group, []).append(entry)
    return {group: tuple(sorted(entries)) for group, entries in groups.items()}


def _of_rooms() -> Iterator[EntryPoint]:
    for package in PACKAGES:
        for folder in (HOME / package, *sorted(_folders(HOME / package))):
            room = folder.relative_to(HOME).as_posix()
            yield from _read(folder / FILE, f"{OWN}{room}")


def _folders(package: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(package) if entry.is_dir()]
    except OSError:  # a package that was taken out
        return []


def _of_distributions(path: tuple[str, ...]) -> Iterator[EntryPoint]:
    """Entry points of the distributions on a path; of two of one name the first counts, as for imports."""
    names: set[str] = set()
    for folder in path:
        for metadata in _metadata(folder or "."):
            name, version = (*metadata.stem.split("-"), "")[:2]
            if name.lower() not in names:
                names.add(name.lower())
                source = f"{name.replace('_', '-')} {version}".rstrip()
                yield from _read(metadata / FILE, source)


def _metadata(folder: str) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(_METADATA))
    except OSError:  # the path may name what is not there, or is no folder
        return []
    return [Path(folder, name) for name in names]


def _read(file: Path, source: str) -> Iterator[EntryPoint]:
    """The entry points of a file for prestep; none where there is no such file."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if PREFIX not in text:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if line.startswith("["):
            group = line.strip("[] ")
        elif equals and group.startswith(PREFIX) and line[0] not in "#;":
            module = value.partition("[")[0].strip()  # without extras
            yield EntryPoint(group, name.strip(), module, source)
