"""Kinds of sets: the keys that their set.toml may have, and what their rows are.

Each kind has a module of its name beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    placed : bool
        Whether `--cluster` says where rows were measured that do not say it themselves.
    """

    table: Table
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
STEPS = "steps"

KINDS: Mapping[str, Kind] = {
    STEPS: Kind(
        table_of(
            ("rows",),
            rows=TEXTS,
            base=Text(),
            limits=Text(),
            cluster=Table(
                {"name": Text(), "host_factor": Number(above=True)}, ("name",)
            ),
        ),
        placed=True,
    ),
    "collectives": Kind(
        table_of(
            ("rows",),
            rows=TEXTS,
            base=Text(),
            limits=Text(),
            fitted=TEXTS,
            fitted_cases=TEXTS,
        )
    ),
}
