"""Exchanges of tensor-parallel ranks around products, before and after them or beside.

Beside a product (Transformer Engine's user buffers, `tp_comm_overlap`; PyTorch's asynchronous tensor parallelism,
torch/distributed/_symmetric_memory), its rows are cut into parts, and copy engines move some while others are computed.
`tensor.toml` says how sums are cut, by who does it, number format and projection:

* ``pipeline``: in ``splits`` parts, each reduce-scattered by ``sms`` SMs while the next is computed. The product leaves
  them free from its first part on.
* ``ring_exchange``: in as many parts as ranks, which copy engines pass on; in the end a kernel adds up what came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prestep.sim import schema
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl tp"
ITEM = 2.0  # bytes of an element of a partial sum
FILE = Path(__file__).with_suffix(".toml")
FORMATS = ("bf16", "quantized")
PARTS = ("proj", "fc2", "dgrad")
METHODS = ("pipeline", "ring_exchange")

#: Launches a product of so many rows that leaves so many SMs to others.
Product = Callable[[int, int], None]


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
    rows = schema.all_of(PARTS, schema.Table(keys, tuple(keys)))
    return {
        (name, part): Scatter(row["method"], row["splits"], row["sms"])
        for name, table in schema.read(FILE, schema.all_of(FORMATS, rows)).items()
        for part, row in table.items()
    }


def begin(t: Tape, op: str, size: float, group: Group, copied: bool = False) -> None:
    """A collective on the group's stream, after the compute so far; who needs it waits."""
    group.collective(t, op, size, STREAM, "functional_collective", copied=copied)


def finish(t: Tape) -> None:
    """Computation waits for the collectives begun so far."""
    t.wait(t.record(STREAM))


def exchange(t: Tape, op: str, size: float, group: Group) -> None:
    """A collective that computation waits for."""
    begin(t, op, size, group)
    finish(t)


def gather(t: Tape, x: Tensor, group: Group) -> None:
    """All parts of a value on every rank of the group."""
    exchange(t, "all_gather", x.size * group.size, group)


def reduce(t: Tape, y: Tensor, group: Group, sequence: bool) -> None:
    """The sum of a value over the group, on every rank or (``sequence``) a part on each."""
    exchange(t, "reduce_scatter" if sequence else "all_reduce", y.size, group)


def gathered_product(
    t: Tape, group: Group, size: float, rows: int, product: Product, parts: int = 1
) -> None:
    """A product of so many rows beside their gathering, ``size`` bytes.

    It begins with the rows that lie here; copy engines move the others (Transformer Engine, ring_exchange). Those that
    come last are multiplied last; the rest is cut in ``parts``.
    """
    begin(t, "all_gather", size, group, copied=True)
    last = max(1, rows // group.size)
    for _ in range(parts if rows > last else 0):
        product((rows - last) // parts, 0)
    finish(t)
    product(last, 0)


def scattered_product(
    t: Tape, group: Group, how: Scatter, rows: int, width: int, product: Product
) -> None:
    """A product in parts, each reduce-scattered while the next is computed; its result has so many rows and columns."""
    parts = how.parts(group.size)
    size = ITEM * rows * width / parts
    for _ in range(parts):
        product(max(1, rows // parts), how.sms)
        begin(t, "reduce_scatter", size, group, copied=True)
    finish(t)
    if how.method == "ring_exchange":
        # What came from every rank is read and one sum written.
        own = rows // group.size * width
        t.launch(Kernel("fused", (own,), bytes=ITEM * own * (group.size + 1)))
