"""What a kind of sets is: the keys that its set.toml may have, and what its rows are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prestep.sim.errors import Mistake
from prestep.sim.schema import Items, Number, Schema, Table, Text

TEXTS = Items(Text())
#: Limits of errors, as shares of the measured value.
SHARE = Number(above=True)


@dataclass(frozen=True)
class Kind:
    """A kind of sets.

    Attributes
    ----------
    table : Table
        What set.toml may say.
    steps : bool
        Whether the cases are training steps, which `--export` writes as a table.
    placed : bool
        Whether `--cluster` says where rows were measured that do not say it themselves.
    """

    table: Table
    steps: bool = False
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


@dataclass(frozen=True)
class Named:
    """A table of values of one kind under any names."""

    value: Schema
    kind: str

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        table = value if isinstance(value, Mapping) else {}
        if not table:
            yield Mistake(where, key, "nothing", f"a table of {self.kind}")
        for name, each in table.items():
            yield from self.value.mistakes(where, f"{key}.{name}", each)
