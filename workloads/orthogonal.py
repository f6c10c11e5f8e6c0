"""Orthogonal updates (Muon): a hidden matrix's momentum, made orthogonal by Newton-Schulz products in bf16.

Source: Keller Jordan's reference (https://kellerjordan.github.io/posts/muon/) and torch/optim/_muon.py of PyTorch 2.9.
Embeddings, learned positions, the head, norms and biases go by AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.aten_products import multiply_sizes
from prestep.workloads.torch.tape import Tape

#: Matrices whose rows are looked up, or stand for words.
TABLES = ("embedding", "position", "head")
# Those of which tensor-parallel ranks hold rows, and columns; others are whole on each.
ROWS, COLUMNS = ("wq", "wk", "wv", "wqkv", "w1", "w3"), ("wo", "w2")
BF16 = 2
STREAM = "nccl muon"


@dataclass(frozen=True)
class Matrices:
    """Hidden matrices of one shape."""

    number: int
    rows: int
    columns: int
    name: str = field(default="", compare=False)

    @property
    def elements(self) -> int:
        return self.number * self.rows * self.columns

    def whole(self, ranks: int) -> Matrices:
        """What these are a part of, where so many tensor-parallel ranks split matrices."""
        if self.name in ROWS:
            return replace(self, rows=self.rows * ranks)
        if self.name in COLUMNS:
            return replace(self, columns=self.columns * ranks)
        return self


def hidden(name: str, shape: Sequence[int]) -> Matrices | None:
    """The matrices of a parameter (of three dimensions: one for each expert); None for one that goes by AdamW."""
    if len(shape) < 2 or len(shape) > 3 or name in TABLES or name.endswith(".bias"):
        return None
    number = shape[0] if len(shape) == 3 else 1
    return Matrices(number, shape[-2], shape[-1], name)


def products(rows: int, columns: int) -> Iterable[tuple[tuple[int, int, int], str]]:
    """Products of one iteration, as (m, n, k) and layout: X X', its square beside it, and both applied to X.

    The shorter side comes first: a tall matrix is transposed.
    """
    short, long = sorted((rows, columns))
    yield (short, short, long), "nt"
    yield (short, short, short), "nn"
    yield (short, long, short), "nn"


def orthogonalize(t: Tape, matrices: Matrices, iterations: int) -> None:
    """Newton-Schulz iterations of each matrix, one after the other; sums are in the products' epilogues (addmm)."""
    for _ in range(matrices.number):
        for _ in range(iterations):
            for (m, n, k), layout in products(matrices.rows, matrices.columns):
                t.cpu("elementwise_nograd")
                multiply_sizes(t, m, n, k, layout)


def update(
    t: Tape,
    every: Iterable[Matrices],
    iterations: int,
    wide: int,
    shards: Group | None = None,
    tensor: Group | None = None,
) -> None:
    """Momentum, orthogonalization and update; ``wide`` are the bytes of a parameter, gradient or momentum.

    Elementwise kernels of each matrix, tensor by tensor: momentum and Nesterov's look-ahead (two values read, one
    written), a cast to bf16 where it is not, the norm, the division by it, weight decay, and the update. Of ``shards``
    every rank has a part: elementwise kernels run on that, the matrix is gathered in bf16 and made orthogonal on every
    rank (Moonlight's distributed Muon, arXiv 2502.16982, algorithm 1); the parts of ``tensor`` ranks then likewise, as
    Megatron-Core's muon_tp_mode = "duplicated" does.
    """
    for matrices in every:
        cast = [wide + BF16] if wide > BF16 else []
        before = [3.0 * wide, 3.0 * wide, *cast, BF16, 2 * BF16]
        after = [2.0 * wide, 2.0 * wide + BF16]
        own = matrices.elements // (shards.size if shards is not None else 1)
        _elementwise(t, own, before)
        if shards is not None:
            shards.collective(t, "all_gather", float(BF16 * matrices.elements), STREAM)
            t.wait(t.record(STREAM))
        whole = matrices if tensor is None else matrices.whole(tensor.size)
        if tensor is not None and whole != matrices:
            tensor.collective(t, "all_gather", float(BF16 * whole.elements), STREAM)
            t.wait(t.record(STREAM))
        orthogonalize(t, whole, iterations)
        _elementwise(t, own, after)


def _elementwise(t: Tape, elements: int, moved: Iterable[float]) -> None:
    for each in moved:
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (elements,), bytes=float(each * elements)))
