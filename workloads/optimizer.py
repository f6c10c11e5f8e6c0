"""Optimizers: the rows of optimizers.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Number, Switch, Table, Text

FILE = Path(__file__).with_name("optimizers.toml")
UPDATES = ("adam", "sgd", "orthogonal", "lion", "adafactor", "quantized")
#: Elements from which a tensor's moments are quantized, where they fill blocks (torchao's optim/adam.py, bitsandbytes).
LEAST_QUANTIZED = 4096
SCALE = 4  # bytes of a block's scale
ROW = Table(
    {
        "description": Text(),
        "update": Text(UPDATES),
        "decays": Switch(),
        "moments": Number(whole=True),
        "iterations": Number(1, whole=True),
        "state": Number(),
        "block": Number(1, whole=True),
    },
    needed=("update", "moments"),
)


@dataclass(frozen=True)
class Optimizer:
    """How parameters are updated.

    Attributes
    ----------
    update : str
        What a framework records: "adam", "sgd", "orthogonal" for hidden matrices with AdamW for the rest, "lion",
        "adafactor" or "quantized".
    moments : int
        Values of state for each parameter (of a hidden matrix, where the rest goes by AdamW).
    iterations : int
        Newton-Schulz iterations of an orthogonal update.
    state : float
        Bytes of a quantized moment; 0: it is as wide as the trainer has it.
    block : int
        How many quantized moments share a scale.
    decays : bool
        Whether parameters decay beside their update (AdamW).
    description : str
        A line for `prestep list optimizers`.
    """

    name: str
    update: str
    moments: int
    iterations: int = 0
    description: str = ""
    state: float = 0.0
    block: int = 1
    decays: bool = False

    def bytes_of_moment(self, elements: int, wide: int) -> float:
        """Bytes of one moment of a tensor; `wide`: of one that is not quantized."""
        small = elements < LEAST_QUANTIZED or elements % self.block
        if not self.state or small:
            return float(elements * wide)
        return elements * self.state + SCALE * (elements // self.block)


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
