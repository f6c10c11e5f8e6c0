"""Context parallelism as Transformer Engine runs it (dot_product_attention/context_parallel.py).

Around a ring, keys and values of the next step travel beside the current one, and in backward their gradients too. One
step costs what a causal kernel over the rank's own tokens does: the first is that, the others are whole blocks of half
the keys, which is the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.context import (
    STREAM,
    Context,
    all_to_all,
    around,
    shared,
)
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape

# Passes over the queries that a step of a ring needs beside its kernel: halves made contiguous and the output rescaled
# and added up; backward halves of queries, outputs and gradients, and the sum of their gradients (those of keys and
# values are added to what travels). Half of them for half a block.
CORRECTED = {"fwd": 3.0, "bwd": 5.0}
# Kernels that make them: forward the copy of a half (another stream runs more of them beside attention) and the sum of
# outputs after all steps; backward copies of two or three halves, one sum for the queries' gradient and two for those
# of keys and values, in one stream.
KERNELS = {"fwd": 2, "bwd": 6}
# Tensors as large as the keys that travel: keys and values, backward their gradients too.
TRAVELLING = {"fwd": 2, "bwd": 4}
HOST = "p2p_batch"

Way = Literal["fwd", "bwd"]
Widths = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """What a rank attends with: samples, tokens, heads of queries and of keys, and the width of each."""

    batch: int
    tokens: int
    queries: int
    keys: int
    dim: int

    @property
    def head(self) -> float:
        """Bytes of one head."""
        return 2.0 * self.batch * self.tokens * self.dim

    def travelling(self, way: Way) -> float:
        """Bytes that a rank sends to the next in one step of a ring."""
        return self.head * self.keys * TRAVELLING[way]

    def with_heads_of(self, ranks: int) -> Part:
        """A rank's part while heads are spread over so many ranks, and tokens are not."""
        queries, keys = self.queries // ranks, shared(self.keys, ranks) // ranks
        return Part(self.batch, self.tokens * ranks, queries, keys, self.dim)


def attend(
    t: Tape,
    way: Way,
    part: Part,
    context: Context | None,
    block: Callable[[Part], Kernel],
    widths: Widths,
    again: bool = False,
) -> None:
    """Attention of this rank's queries to all keys.

    Parameters
    ----------
    block : callable
        The kernel that attends to the keys of a part.
    widths : tuple of int
        Bytes of an element whose heads are exchanged ahead of attention, and behind it.
    again : bool
        Whether the result comes in again in backward, as before Transformer Engine 2.8.
    """
    if context is None or context.group.size == 1:
        t.launch(block(part))
        return
    heads, ring = context.heads, context.ring
    outwards: Sequence[int] = ()
    if heads is not None:
        inwards, outwards = _exchanged(way, part, heads.size, again)
        _exchange_heads(t, inwards, widths[0], heads)
        part = part.with_heads_of(heads.size)
    if ring is None:
        t.launch(block(part))
    else:
        _attend_ring(t, way, part, ring, block(part))
    if heads is not None:
        _exchange_heads(t, outwards, widths[1], heads)


def _attend_ring(t: Tape, way: Way, part: Part, ring: Group, block: Kernel) -> None:
    """The same kernel for the keys of every rank, and those that put each step's result into the whole."""
    correction = _correction(way, part)

    def send(step: int) -> bool:
        ring.collective(t, "sendrecv", part.travelling(way), STREAM, HOST)
        return True

    def step(_: int) -> None:
        t.launch(block)
        for _ in range(KERNELS[way]):
            t.launch(correction)

    around(t, ring, send, step)


def _correction(way: Way, part: Part) -> Kernel:
    """One of the kernels that put a step's part into the whole."""
    elements = part.batch * part.tokens * part.queries * part.dim
    moved = CORRECTED[way] * 2.0 * elements
    if way == "bwd":
        moved += 3.0 * part.travelling(way)
    return Kernel("fused", (elements,), bytes=moved / KERNELS[way])


def _exchanged(
    way: Way, part: Part, ranks: int, again: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Elements of the tensors whose heads are exchanged ahead of attention, and behind it (AttnFuncWithCPAndQKVOA2A).

    Queries, keys and values come in and the result goes back; backward its gradient comes in, and three gradients go
    out.
    """
    one = part.batch * part.tokens * part.dim
    sent, keys = one * part.queries, one * shared(part.keys, ranks)
    if way == "fwd":
        return (sent, keys, keys), (sent,)
    return (sent,) * (1 + again), (sent, keys, keys)


def _exchange_heads(t: Tape, sizes: Sequence[int], width: int, group: Group) -> None:
    """Tensors of so many elements, each by an all-to-all of its own and a pass that puts it in order."""
    all_to_all(t, group, [float(width * size) for size in sizes], HOST)
    for size in sizes:
        t.launch(Kernel("aten copy", (size,), bytes=2.0 * width * size))
