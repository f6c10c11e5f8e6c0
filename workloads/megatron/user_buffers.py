"""Transformer Engine's user buffers: how a product and the exchange beside it are cut (`tp_comm_overlap`).

`user_buffers.toml` has the methods of NVIDIA's recipes by number format and projection.

* ``pipeline``: the product in ``splits`` parts, each reduce-scattered by ``sms`` SMs while the next is computed. The
  product leaves them free from its first part on.
* ``ring_exchange``: as many parts as ranks. Copy engines pass them on; in the end a kernel adds up what came.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prestep.sim import schema

FILE = Path(__file__).with_suffix(".toml")
FORMATS = ("bf16", "quantized")
PARTS = ("proj", "fc2", "dgrad")
METHODS = ("pipeline", "ring_exchange")


@dataclass(frozen=True)
class Scatter:
    """How a product's result is reduce-scattered beside it.

    Attributes
    ----------
    method : str
        One of ``METHODS``.
    splits : int
        Parts of a pipeline; 0: as many as ranks.
    sms : int
        SMs that the product leaves to the exchange.
    """

    method: str
    splits: int
    sms: int

    def parts(self, ranks: int) -> int:
        """Parts of the product."""
        return self.splits or ranks


def scatter_of(part: str, quantized: bool) -> Scatter:
    """Of a projection: attention's output ("proj"), the feed-forward's ("fc2"), or an input's gradient ("dgrad")."""
    return _methods()[FORMATS[quantized], part]


@cache
def _methods() -> dict[tuple[str, str], Scatter]:
    whole = schema.Number(whole=True)
    keys: dict[str, schema.Schema] = {
        "method": schema.Text(METHODS),
        "splits": whole,
        "sms": whole,
        "source": schema.Text(),
    }
    row = schema.Table(keys, tuple(keys))
    parts = schema.all_of(PARTS, row)
    tables = schema.read(FILE, schema.all_of(FORMATS, parts))
    return {
        (name, part): Scatter(said["method"], said["splits"], said["sms"])
        for name, table in tables.items()
        for part, said in table.items()
    }
