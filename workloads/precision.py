"""Number formats of training: the rows of precisions.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Items, Number, Table, Text

FILE = Path(__file__).with_name("precisions.toml")
NEEDS = ("quantized", "scaled loss", "wide")
ROW = Table(
    {
        "description": Text(),
        "parameter": Number(1, whole=True),
        "products": Text(),
        "needs": Items(Text(NEEDS)),
        "wire": Items(Text(), 2),
    },
    needed=("parameter", "wire"),
)


@dataclass(frozen=True)
class Precision:
    """A number format.

    Attributes
    ----------
    parameter : int
        Bytes of a parameter.
    products : str
        Type of the layers' matrix products; "": the parameters' own.
    needs : tuple of str
        What a framework must do for it.
    tensor, nccl : str
        Type on the network, as PyTorch and NCCL name it.
    """

    name: str
    parameter: int
    products: str
    needs: tuple[str, ...]
    tensor: str
    nccl: str

    @property
    def quantized(self) -> bool:
        """Whether operands of products are cast from 16 bits."""
        return "quantized" in self.needs

    @property
    def wide(self) -> bool:
        """Whether everything is computed in 32 bits."""
        return "wide" in self.needs

    @property
    def scaled_loss(self) -> bool:
        """Whether the loss is scaled, and gradients unscaled."""
        return "scaled loss" in self.needs


@cache
def _rows() -> dict[str, Precision]:
    table = schema.rows(FILE, ROW)
    return {
        name: Precision(
            name,
            row["parameter"],
            row.get("products", ""),
            tuple(row.get("needs", ())),
            *row["wire"],
        )
        for name, row in table.items()
    }


def names() -> list[str]:
    """Names that `training.precision` can have, in the order of the file."""
    return list(_rows())


def precision(name: str) -> Precision:
    """The number format of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in _rows():
        raise InputError(unknown("scenario", "training.precision", name, names()))
    return _rows()[name]
