"""Exchanges of tensor-parallel ranks around products, before and after them or beside.

Beside a product (Transformer Engine's user buffers, `tp_comm_overlap`; PyTorch's asynchronous tensor parallelism,
torch/distributed/_symmetric_memory), its rows are cut into parts, and copy engines move some while others are computed.
A sum is a pipeline of parts, each reduce-scattered by SMs that the product leaves free from its first part on while the
next is computed, or a ring of as many parts as ranks, which copy engines pass on until a kernel adds up what came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

STREAM = "nccl tp"
STREAMS = 3  # of products in parts (Transformer Engine, num_max_streams)
ITEM = 2.0  # bytes of an element of a partial sum
#: Launches a product of so many rows that leaves so many SMs to others.
Product = Callable[[int, int], None]


@dataclass(frozen=True)
class Scatter:
    """How a product's result is reduce-scattered beside it.

    Attributes
    ----------
    splits : int
        Parts of a pipeline; 0: a ring, in as many as ranks.
    sms : int
        SMs that the product leaves to the exchange.
    """

    splits: int
    sms: int


#: By projection (attention's output, the feed-forward's, an input's gradient), in 16 bits and of quantized operands.
#: Facts of Megatron-Bridge, training/comm_overlap.py: userbuffers_*_h100_h8192_tp4_mbs1_seqlen8192 and, of "dgrad",
#: userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora. Other widths have 16 to 32 SMs for "proj".
SCATTERS = {
    "proj": (Scatter(4, 24), Scatter(0, 1)),
    "fc2": (Scatter(4, 16), Scatter(0, 1)),
    "dgrad": (Scatter(4, 16), Scatter(4, 16)),
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
    t: Tape, group: Group, size: float, rows: int, product: Product
) -> None:
    """A product of so many rows beside their gathering, ``size`` bytes.

    It begins with the rows that lie here; copy engines move the others, and each rank's rows are a product of their own
    on one of three streams (Transformer Engine, split_overlap_ag). Those of a stream stand as one product, since parts
    fill each other's last rounds: measured on two H200, 2 to 8 parts take 1.05 times as long as the whole. The rows
    that come last are multiplied last.
    """
    begin(t, "all_gather", size, group, copied=True)
    last = max(1, rows // group.size)
    others = range(group.size - 1 if rows > last else 0)
    for stream in range(min(len(others), STREAMS)):
        product(last * len(others[stream::STREAMS]), 0)
    finish(t)
    product(last, 0)


def scattered_product(
    t: Tape, group: Group, how: Scatter, rows: int, width: int, product: Product
) -> None:
    """A product in parts, each reduce-scattered while the next is computed; its result has so many rows and columns."""
    parts = how.splits or group.size
    size = ITEM * rows * width / parts
    for _ in range(parts):
        product(max(1, rows // parts), how.sms)
        begin(t, "reduce_scatter", size, group, copied=True)
    finish(t)
    if not how.splits:
        # What came from every rank is read and one sum written.
        own = rows // group.size * width
        t.launch(Kernel("fused", (own,), bytes=ITEM * own * (group.size + 1)))
