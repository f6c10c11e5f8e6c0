"""Orthogonal updates (Muon): a hidden matrix's momentum, made orthogonal by Newton-Schulz products in bf16.

Source: Keller Jordan's reference (https://kellerjordan.github.io/posts/muon/) and torch/optim/_muon.py of PyTorch 2.9.
Embeddings, learned positions, the head, norms and biases go by AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from prestep.workloads.operation import Operand
from prestep.workloads.operators.tensors import contiguous, strides_of
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.tape import DTYPES, Tape
from prestep.workloads.torch.updates import call

#: Matrices whose rows are looked up, or stand for words.
TABLES = ("embedding", "position", "head")
# Those of which tensor-parallel ranks hold rows, and columns; others are whole on each.
ROWS, COLUMNS = ("wq", "wk", "wv", "wqkv", "w1", "w3"), ("wo", "w2")
BF16 = 2
STREAM = "nccl muon"
#: Numbers of torch.optim.Muon: those of its polynomial, the least norm, and what weights and momentum keep.
SQUARED, APPLIED = (("alpha", 2.0315), ("beta", -4.775)), (("beta", 3.4445),)
LEAST, DECAY, MOMENTUM, RATE = 1e-7, 0.9999, 0.95, (("alpha", -1e-3),)


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

    def shape(self, parts: int) -> tuple[int, ...]:
        """Of a part of the rows; of several matrices, one behind the other."""
        rows = -(-self.rows // parts), self.columns
        return rows if self.number == 1 else (self.number, *rows)

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


def orthogonalize(t: Tape, x: Operand, iterations: int) -> None:
    """Newton-Schulz iterations of a wide matrix: X X', its square beside it, and both applied to X."""
    rows, columns = x.shape
    gram = Operand(x.dtype, (rows, rows))
    for _ in range(iterations):
        call(t, "mm.default", x, turned(x), results=(gram,))
        call(t, "addmm.default", gram, gram, gram, results=(gram,), options=SQUARED)
        own = Operand(x.dtype, (rows, columns))
        call(t, "addmm.default", x, gram, x, results=(own,), options=APPLIED)
        x = own


def turned(x: Operand) -> Operand:
    """``x.mT``."""
    (*others, rows, columns), (*steps, down, right) = x.shape, strides_of(x)
    shape, strides = (*others, columns, rows), (*steps, right, down)
    return replace(
        x, shape=shape, strides=() if strides == contiguous(shape) else strides
    )


def update(
    t: Tape,
    every: Iterable[Matrices],
    iterations: int,
    wide: int,
    shards: Group | None = None,
    tensor: Group | None = None,
) -> None:
    """Momentum, orthogonalization and update; ``wide`` are the bytes of a parameter, gradient or momentum.

    Of ``shards`` every rank has a part of the rows: elementwise kernels run on that, the matrix is gathered in bf16 and
    made orthogonal on every rank (Moonlight's distributed Muon, arXiv 2502.16982, algorithm 1); the parts of ``tensor``
    ranks then likewise, as Megatron-Core's muon_tp_mode = "duplicated" does.
    """
    for matrices in every:
        parts = shards.size if shards is not None else 1
        own = Operand(DTYPES[wide], matrices.shape(parts))
        _momentum(t, own)
        if shards is not None:
            shards.collective(t, "all_gather", float(BF16 * matrices.elements), STREAM)
            t.wait(t.record(STREAM))
        whole = matrices if tensor is None else matrices.whole(tensor.size)
        if tensor is not None and whole != matrices:
            tensor.collective(t, "all_gather", float(BF16 * whole.elements), STREAM)
            t.wait(t.record(STREAM))
        x = Operand("bf16", (whole.rows, whole.columns))
        for _ in range(whole.number):
            orthogonalize(t, turned(x) if whole.rows > whole.columns else x, iterations)
        call(t, "mul_.Tensor", own, DECAY, results=(own,))
        call(t, "add_.Tensor", own, _result(own), results=(own,), options=RATE)


def _result(own: Operand) -> Operand:
    """The orthogonal matrix, or a part of it; a tall one was computed transposed."""
    x = replace(own, dtype="bf16")
    *others, rows, columns = own.shape
    if rows <= columns:
        return x
    return turned(replace(x, shape=(*others, columns, rows)))


def _momentum(t: Tape, own: Operand) -> None:
    """Nesterov's look-ahead in bf16, which is divided by its norm; a tall matrix is transposed."""
    call(t, "lerp_.Scalar", own, own, 1 - MOMENTUM, results=(own,))
    call(t, "lerp.Scalar", own, own, MOMENTUM, results=(own,))
    x = replace(own, dtype="bf16")
    if own.dtype != x.dtype:
        call(t, "_to_copy.default", own, results=(x,), options=(("dtype", "bf16"),))
    x = turned(x) if x.shape[-2] > x.shape[-1] else x
    norm = Operand(x.dtype, ())
    call(t, "linalg_vector_norm.default", x, results=(norm,))
    call(t, "clamp.default", norm, LEAST, results=(norm,))
    call(t, "div_.Tensor", x, norm, results=(x,))
