"""What constants were taken from: `fitted.toml`, beside the rows of training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prestep.sim import schema
from prestep.sim.schema import Items, Table, Text

USES = ("traces", "steps", "memory", "times")
CONSTANT = Table(
    {
        "file": Text(),
        "name": Text(),
        "used": Text(USES),
        **dict.fromkeys(("rows", "steps_of", "other"), Items(Text())),
    },
    needed=("file", "name", "used"),
)
SCHEMA = Table({"constant": Items(CONSTANT)}, needed=("constant",))


@dataclass(frozen=True)
class Constant:
    """A fitted or measured constant and its sources.

    Attributes
    ----------
    file, name
        Where it stands, and what it is.
    used
        What of the rows was used, one of `USES`.
    rows
        Rows by name.
    steps_of
        Files of the folder, all rows of which were used.
    other
        Measurements that are no training steps.
    """

    file: str
    name: str
    used: str
    rows: Sequence[str] = ()
    steps_of: Sequence[str] = ()
    other: Sequence[str] = ()


def constants_of(path: Path) -> list[Constant]:
    """The entries of a fitted.toml.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    table = schema.read(path, SCHEMA, "a fitted.toml")
    return [Constant(**entry) for entry in table["constant"]]
