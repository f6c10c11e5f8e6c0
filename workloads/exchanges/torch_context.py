"""A ring of keys and values as PyTorch runs it, and heads that are exchanged by its collectives.

Rules from torch/distributed/tensor/experimental/_attention.py (``context_parallel``, which torchtitan uses), of PyTorch
2.7 and later. Every rank has one part of the sequence from each end, so that all have the same work in every step. Keys
and values arrive by one all-gather or step by step; both ways each step joins them in a buffer first. Outputs are
merged in fp32. Backward, gradients of keys and values travel on in fp32 with every step and once more to get home.
Steps are those of the last rank of the ring: its queries meet half of the others' keys; ranks before it do half of
their queries with all keys in some steps, which is the same work.

Heads are exchanged as DeepSpeed's DistributedAttention and diffusers' unified attention do it: each tensor is copied
into the order in which it is sent, goes by a functional all-to-all, and is copied into the order that is read next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.context import (
    STREAM,
    all_to_all,
    around,
    moved,
    shared,
)
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import Tape, Tensor

WIDE = 4  # bytes of a number in fp32
#: Bytes a row of the kernels that merge the logarithms of the softmax's sums.
MERGED_SUMS = (12.0, 8.0, 12.0, 8.0, 12.0)

Rotation = Literal["allgather", "alltoall"]
Gradients = Callable[[Tape, Tensor, Tensor, Tensor], "list[Tensor]"]


@dataclass(frozen=True)
class Shapes:
    """Sizes of one rank's part of an attention.

    Attributes
    ----------
    queries, keys, values, outputs, rows : int
        Numbers in the queries, keys, values and outputs, and rows of the softmax.
    itemsize : int
        Bytes of a number.
    """

    queries: int
    keys: int
    values: int
    outputs: int
    rows: int
    itemsize: int = 2

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Shapes:
        """Of queries, keys and values, (batch, heads, tokens, width) each; heads of an output are as wide as values."""
        rows = q.elements // q.shape[-1]
        return cls(
            q.elements, k.elements, v.elements, rows * v.shape[-1], rows, q.itemsize
        )

    @property
    def both(self) -> int:
        """Numbers in keys and values."""
        return self.keys + self.values

    @property
    def travelling(self) -> float:
        """Bytes of keys and values."""
        return float(self.both * self.itemsize)


@dataclass(frozen=True)
class Ring:
    """Ranks whose keys and values go around.

    Attributes
    ----------
    group : Group
    rotation : str
        How keys and values get round: "allgather" or "alltoall".
    fused : bool
        What lies between attention's kernels is compiled: a kernel where eager PyTorch has several.
    """

    group: Group
    rotation: Rotation = "allgather"
    fused: bool = False

    @property
    def last(self) -> int:
        """The last step."""
        return self.group.size - 1

    # -- forward --------------------------------------------------------------------------------
    def forward(self, t: Tape, s: Shapes, kernels: Sequence[Kernel]) -> None:
        """Launches attention over all keys; `kernels`, the last of which attends, do it for one block.

        Where operators' results are kept instead of being computed again, this is one operator.
        """
        if t.drop is not None and t.drop(kernels[-1]):
            t.host_pending = 0.0
            return
        drop, t.drop = t.drop, None
        self._ordered(t, s)
        buffer = self._buffer(t, s)
        merged = t.empty((s.outputs,), WIDE)

        def attend(step: int) -> None:
            for kernel in kernels:
                t.launch(kernel)
            for size in self._merges(s, step):
                self._launch(t, s.outputs, size)

        around(t, self.group, partial(self._send_keys, t, s), attend)
        del buffer, merged
        t.drop = drop

    def _merges(self, s: Shapes, step: int) -> Iterator[float]:
        """Bytes of the kernels that put a step's output into the whole."""
        narrow, n = s.itemsize, s.outputs
        if self.fused:
            yield from self._fused_sum(n, narrow, step)
            return
        if narrow != WIDE:
            yield float(n * (narrow + WIDE))
        if step:
            yield from (float(n * passes * WIDE) for passes in (3, 2, 3))
            yield from (s.rows * size for size in MERGED_SUMS)
        if step == self.last and narrow != WIDE:
            yield float(n * (narrow + WIDE))

    def _fused_sum(self, n: int, narrow: int, step: int) -> Iterator[float]:
        """Bytes of the kernel that adds a step's results to those of the steps before; the first step has none."""
        if step:  # what earlier steps made is in fp32, but for the first one's, and so is what is left
            before, after = (narrow if step == at else WIDE for at in (1, self.last))
            yield float(n * (before + narrow + after))

    # -- backward -------------------------------------------------------------------------------
    def backward(
        self,
        t: Tape,
        s: Shapes,
        tensors: tuple[Tensor, Tensor, Tensor],
        gradients: Gradients,
    ) -> list[Tensor]:
        """Gradients of queries, keys and values; `gradients` launches the backward pass of one block."""
        self._ordered(t, s)
        buffer, sums = self._buffer(t, s), self._sums(t, s)
        arriving: list[Tensor] = []

        def attend(step: int) -> None:
            block = gradients(t, *tensors)
            if step:
                t.wait(t.record(STREAM))
            for size in self._sums_of_keys(s, step):
                self._launch(t, s.both, size)
            # The next sum is there before the last one is freed.
            arriving[:] = [t.empty((s.both,), WIDE)]
            self._send(t, arriving[0].size)
            for size in self._sums_of_queries(s, step):
                self._launch(t, s.queries, size)
            del block

        around(t, self.group, partial(self._send_keys, t, s), attend)
        t.wait(t.record(STREAM))
        if s.itemsize != WIDE:
            self._launch(t, s.both, s.both * float(s.itemsize + WIDE))
        del buffer, sums
        arriving.clear()
        return [t.empty(x.shape, x.itemsize) for x in tensors]

    def _sums(self, t: Tape, s: Shapes) -> list[Tensor]:
        """Where gradients of queries, keys and values are added up; fused kernels write the first."""
        sums = [t.empty((count,), WIDE) for count in (s.queries, s.keys, s.values)]
        for x in () if self.fused else sums:
            self._launch(t, x.elements, x.size)
        return sums

    def _sums_of_keys(self, s: Shapes, step: int) -> Iterator[float]:
        """Bytes of the kernels that add a step's gradients of keys and values to those that travel, and join both."""
        narrow = s.itemsize
        added = narrow * (0.5 if step else 1.0)  # half of the keys were met
        if self.fused:
            yield s.both * (added + (2 * WIDE if step else WIDE))
            return
        for count in (s.keys, s.values):
            yield count * (added + 2 * WIDE * (0.5 if step else 1.0))
            if step:  # halves are put together again
                yield float(count * 2 * WIDE)
        yield float(s.both * 2 * WIDE)

    def _sums_of_queries(self, s: Shapes, step: int) -> Iterator[float]:
        """Bytes of the kernels that add up the queries' gradient."""
        n, narrow = s.queries, s.itemsize
        if self.fused:
            yield from self._fused_sum(n, narrow, step)
            return
        yield float(n * (narrow + 2 * WIDE))
        if step == self.last and narrow != WIDE:
            yield float(n * (narrow + WIDE))

    # -- what travels ---------------------------------------------------------------------------
    def _ordered(self, t: Tape, s: Shapes) -> None:
        """Values, a view of their projection, are made contiguous; keys are."""
        self._launch(t, s.values, 2.0 * s.values * s.itemsize, "aten copy", "strided")

    def _buffer(self, t: Tape, s: Shapes) -> Tensor:
        """Where keys and values arrive: of all ranks, or of the next and the current step."""
        parts = self.group.size if self.rotation == "allgather" else 2
        return t.empty((parts * s.both,), s.itemsize)

    def _send_keys(self, t: Tape, s: Shapes, step: int) -> bool:
        """Sends keys and values of the next step, of which an all-gather brings those of all steps at once."""
        self._launch(t, s.both, 2 * s.travelling, "aten cat")
        if self.rotation == "alltoall":
            self._send(t, s.travelling)
            return True
        if step:
            return False
        whole = self.group.size * s.travelling
        self.group.collective(t, "all_gather", whole, STREAM, self._host)
        return True

    def _send(self, t: Tape, size: float) -> None:
        """So many bytes to the next rank (``permute_tensor``: an all-to-all with one part that is not empty)."""
        self.group.collective(t, "sendrecv", size, STREAM, self._host)

    @property
    def _host(self) -> str:
        return "collective" if self.fused else "functional_collective"

    def _launch(
        self, t: Tape, n: int, size: float, kind: str = "fused", layout: str = ""
    ) -> None:
        if not self.fused:
            t.cpu("elementwise_nograd")
        t.launch(Kernel(kind, (n,), layout=layout, bytes=size))


def to_heads(t: Tape, x: Tensor, group: Group) -> Tensor:
    """Part of the tokens of all heads as all tokens of part of the heads: (batch, heads, tokens, width) both times."""
    (batch, heads, tokens, width), ranks = x.shape, group.size
    sent = shared(heads, ranks)
    shape = (batch, sent // ranks, tokens * ranks, width)
    size = float(batch * sent * tokens * width * x.itemsize)
    return moved(t, x, shape, *_ways(t, x, batch, size, group))


def to_tokens(t: Tape, y: Tensor, group: Group) -> Tensor:
    """The way back of attention's output."""
    batch, heads, tokens, width = y.shape
    shape = (batch, heads * group.size, tokens // group.size, width)
    to_heads, to_tokens = _ways(t, y, batch, y.size, group)
    return moved(t, y, shape, to_tokens, to_heads)


def _ways(
    t: Tape, x: Tensor, batch: int, size: float, group: Group
) -> tuple[Callable[[], Tensor | None], Callable[[], Tensor | None]]:
    """Exchanges of a tensor of so many bytes, to heads and to tokens.

    Tokens of one sample arrive in order; heads do not, nor do those of several.
    """
    count, itemsize = round(size / x.itemsize), x.itemsize
    copy = Kernel("aten copy", (count,), layout="strided", bytes=2 * size)

    def order() -> None:
        t.cpu("elementwise_nograd")
        t.launch(copy)

    def exchange(ordered: bool) -> Tensor | None:
        order()
        sent, arrived = (t.empty((count,), itemsize) for _ in range(2))
        all_to_all(t, group, (size,), "functional_collective")
        del sent
        if not ordered:
            return None  # what arrived is the result
        order()
        return arrived

    return partial(exchange, batch > 1), partial(exchange, True)
