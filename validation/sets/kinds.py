"""Kinds of sets: the keys that their set.toml may have, and what their rows are.

Each kind has a module of its name beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prestep.sim.schema import Items, Schema, Table, Text

TEXTS = Items(Text())


@dataclass(frozen=True)
class Kind:
    """A kind of sets.

    Attributes
    ----------
    table : Schema
        What set.toml may say.
    placed : bool
        Whether `--cluster` says where rows were measured that do not say it themselves.
    """

    table: Schema
    placed: bool = False


def table_of(required: tuple[str, ...] = (), **keys: Schema) -> Table:
    """Returns the keys of a kind's set.toml: its own, and those of every kind.

    Examples
    --------
    >>> table = table_of(("rows",), rows=TEXTS)
    >>> [mistake.key for mistake in table.mistakes("set.toml", "", {"title": "Steps"})]
    ['rows']
    """
    return Table({"title": Text(), "kind": Text(), **keys}, ("title", *required))


#: The kind of a set.toml that does not name one.
USUAL = "own"

KINDS: Mapping[str, Kind] = {
    USUAL: Kind(table_of(("rows",), rows=TEXTS), placed=True),
}
