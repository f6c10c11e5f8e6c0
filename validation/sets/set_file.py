"""A set's own file: what `set.toml` may say, by the kind of the set, read strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.errors import Mistake, unknown
from prestep.sim.schema import Table, Text
from prestep.validation.sets.kinds import STEPS
from prestep.validation.sets.sources import kinds

ALIAS = Table({"alias": Text()})


@dataclass(frozen=True)
class SetFile:
    """A set.toml: another name of a set, or what its kind may say."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        table = value if isinstance(value, Mapping) else {}
        kind = str(table.get("kind", STEPS))
        if "alias" in table:
            yield from ALIAS.mistakes(where, key, value)
        elif kind in kinds():
            yield from kinds()[kind].table.mistakes(where, key, value)
            yield from _unknown_hosts(where, table)
        else:
            yield unknown(where, "kind", kind, kinds())


def _unknown_hosts(where: str, table: Mapping[str, Any]) -> Iterator[Mistake]:
    """Host factors of what is neither a cluster of the set nor a file of its rows."""
    clusters = [str(name) for name in _table(table, "clusters").values()]
    rows = table.get("rows")
    files = [Path(str(file)).stem for file in rows] if isinstance(rows, list) else []
    named = [*clusters, *files]
    for name in _table(table, "hosts"):
        if name not in named:
            yield unknown(where, f"hosts.{name}", name, named)


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table of a key, empty where there is none or something else."""
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


def read(path: Path) -> dict[str, Any]:
    """The table of a set.toml.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    return schema.read(path, SetFile(), "a set.toml")
