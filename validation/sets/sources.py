"""Where sets of measurements come from: prestep itself, and packages of other distributions.

A source is a package with sets in `cases/NAME/set.toml` and kinds in `sets/kinds.py`. A distribution declares its
package under the entry point group `prestep.sets`; the checkout's own laboratory does.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from prestep.sim import data_files, schema
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.validation.sets.kinds import USUAL, Kind

GROUP = "prestep.sets"


@functools.cache
def sources() -> tuple[str, ...]:
    """Returns the packages that have sets, prestep's own first."""
    return ("prestep.validation", *data_files.packages(GROUP))


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Returns every kind of sets by name.

    Raises
    ------
    InputError
        If two packages define one kind.

    Examples
    --------
    >>> kinds()["own"].placed
    True
    """
    tables = {source: _kinds_of(source) for source in sources()}
    homes: dict[str, str] = {}
    for source, table in tables.items():
        for kind in table:
            if kind in homes:
                expected = f"another name: {homes[kind]} has a kind of that name"
                raise InputError.of(f"{source}.sets.kinds", "KINDS", kind, expected)
            homes[kind] = source
    return {kind: one for table in tables.values() for kind, one in table.items()}


def _kinds_of(source: str) -> Mapping[str, Kind]:
    table: Mapping[str, Kind] = importlib.import_module(f"{source}.sets.kinds").KINDS
    return table


def module_of(kind: str) -> ModuleType:
    """Returns the module that predicts sets of a kind and compares; it has `validate_set`."""
    source = next(one for one in sources() if kind in _kinds_of(one))
    return importlib.import_module(f"{source}.sets.{kind}")


def folders() -> dict[str, Path]:
    """Returns the folder of every set by name, sorted; prestep's own set where two packages have one of a name."""
    paths: dict[str, Path] = {}
    for source in reversed(sources()):
        for path in (data_files.home(source) / "cases").glob("*/set.toml"):
            paths[path.parent.name] = path.parent
    return dict(sorted(paths.items()))


@dataclass(frozen=True)
class SetFile:
    """A set.toml: what its kind may say."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        table = value if isinstance(value, Mapping) else {}
        kind = str(table.get("kind", USUAL))
        if kind in kinds():
            yield from kinds()[kind].table.mistakes(where, key, value)
        else:
            yield unknown(where, "kind", kind, kinds())


def read_set(path: Path) -> dict[str, Any]:
    """The table of a set.toml.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    return schema.read(path, SetFile(), "a set.toml")
