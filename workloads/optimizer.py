"""Optimizers: the rows of optimizers.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sim import schema
from sim.errors import InputError, unknown
from sim.schema import Number, Table, Text

FILE = Path(__file__).with_name("optimizers.toml")
UPDATES = ("adam", "sgd", "orthogonal")
ROW = Table(
    {
        "description": Text(),
        "update": Text(UPDATES),
        "moments": Number(whole=True),
        "iterations": Number(1, whole=True),
    },
    needed=("update", "moments"),
)


@dataclass(frozen=True)
class Optimizer:
    """How parameters are updated.

    Attributes
    ----------
    update : str
        What a framework records: "adam", "sgd", or "orthogonal" for hidden matrices with AdamW for the rest.
    moments : int
        Values of state for each parameter (of a hidden matrix, where the rest goes by AdamW).
    iterations : int
        Newton-Schulz iterations of an orthogonal update.
    description : str
        A line for `prestep list optimizers`.
    """

    name: str
    update: str
    moments: int
    iterations: int = 0
    description: str = ""


@cache
def _rows() -> dict[str, Optimizer]:
    return {
        name: Optimizer(name, **row) for name, row in schema.rows(FILE, ROW).items()
    }


def names() -> list[str]:
    """Names that `training.optimizer` can have, in the order of the file."""
    return list(_rows())


def optimizer(name: str) -> Optimizer:
    """The optimizer of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in _rows():
        raise InputError(unknown("scenario", "training.optimizer", name, names()))
    return _rows()[name]
