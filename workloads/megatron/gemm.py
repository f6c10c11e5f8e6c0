"""GEMMs in a run's number format, and the quantizing of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.elementwise import pass_over, unsaved
from prestep.workloads.memory.account import Storage
from prestep.workloads.torch.aten_products import (
    forward_layout,
    multiply_narrow,
    multiply_sizes,
)
from prestep.workloads.torch.tape import Tape, Tensor


def weight_gradient(
    t: Tape, n: int, k: int, m: int, o: Numbers, operands: tuple[Tensor, ...] = ()
) -> None:
    """The weight's gradient, added to the buffer that accumulates it; put off, it keeps its operands till then."""
    later(t, lambda: _add_product(t, n, k, m, o), operands, o)


def later(
    t: Tape,
    launch: Callable[[], None],
    operands: tuple[Tensor, ...],
    o: Numbers | None = None,
) -> None:
    """Runs ``launch`` now, or, where weight gradients are put off, when they come; ``operands`` live till then.

    ``o``: how the products that take them compute, where they may be quantized.
    """
    if t.deferred is None:
        launch()
        return
    waiting = operands if o is None else tuple(quantized(t, x, o) for x in operands)

    def put_off(_: tuple[Tensor, ...] = waiting) -> None:
        launch()

    t.deferred.append(put_off)


def _add_product(t: Tape, n: int, k: int, m: int, o: Numbers) -> None:
    """The product of gradients and inputs, and its sum with the buffer where the GEMM does not add."""
    gemm(t, n, k, m, "tn", o)
    moved = float(2 + 2 * o.wide) if o.added is None else o.added
    if not o.fused_accumulation and moved:
        pass_over(t, n * k, n * k * moved)


# Bytes an element that quantizing moves: read, written and written transposed; with dynamic scales the largest value is
# found before, and the transposed copy is made from the fp8 one; by rows and by columns both from bf16 (torchao); MXFP8
# by rows and by columns at once, with scales that are put in the products' order afterwards: 4.2 bytes, but rows for
# fitting of Llama 3 8B on GB200 take longer than with a scale for each tensor by as many as here (fitted).
QUANTIZING = {"delayed": 4.0, "dynamic": 7.0, "rowwise": 10.0, "mx": 8.0}
# The same where products take operands of any layout.
UNTRANSPOSED = {**QUANTIZING, "delayed": 3.0, "dynamic": 5.0}

# Bytes an element that are read to find the largest value, and a kernel of one thread.
FOUND = 2.0
SCALAR = Kernel("memset", (4,), bytes=4.0)

# The same where weights are frozen: nothing is written transposed, which only products for weights' gradients take
# (MXFP8: by rows alone, of the fitted bytes as large a part as of the counted ones, 3.1 of 4.2).
FROZEN = {"delayed": 3.0, "dynamic": 5.0, "rowwise": 5.0, "mx": 8.0 * 3.1 / 4.2}


# Bytes of an element in 16 bits.
WIDE = 2.0
# Bytes of an element with its share of its block's scale.
NVFP4, MXFP8 = 1 / 2 + 1 / 16, 1 + 1 / 32


@dataclass(frozen=True)
class Numbers:
    """How projections compute and add up.

    ``products`` is the type of quantized operands, "" where they are not; ``wide`` is the size in bytes of a gradient
    in the buffer that accumulates it; ``added`` are bytes moved for an element to add it there where the GEMM does not.
    """

    products: str
    wide: int
    fused_accumulation: bool
    overlap: bool  # tensor-parallel communication beside the GEMMs
    asynchronous: bool = True  # a gradient's all-reduce beside the weight's gradient
    scaling: str = "delayed"  # how fp8 operands get their scales
    transposes: bool = True  # and whether they are written transposed as well
    added: float | None = None  # None: the gradient read, the buffer read and written
    frozen: bool = False  # weights have no gradients
    scatters: bool = False  # with ``overlap``: input gradients are reduce-scattered beside their own product
    rotates: bool = (
        True  # NVFP4: columns are rotated on their way (random Hadamard transform)
    )
    transposes_weights: bool = (
        False  # fp8 weights are transposed in every backward pass, not once
    )
    casts: bool = False  # the activation between two projections quantizes what it makes (operation fuser)
    recasts: float = 0.0  # share of microbatches where the fuser casts weights that an earlier one had cast
    keeps_wide: bool = (
        False  # backward's operands wait in 16 bits and are cast there (torchao)
    )

    @property
    def quantizing(self) -> float:
        """Bytes moved to quantize an element of an operand.

        In NVFP4 it is read for its largest value, and again for rows and columns, which one kernel writes, rotated or
        not (Transformer Engine, pytorch/csrc/quantizer.cpp, NVFP4Quantizer::quantize_impl).
        """
        if self.products == "nvfp4":
            return FOUND + WIDE + (1 if self.frozen else 2) * NVFP4
        if self.frozen:
            return FROZEN[self.scaling]
        return (QUANTIZING if self.transposes else UNTRANSPOSED)[self.scaling]

    @property
    def casting(self) -> float:
        """Bytes moved to cast an element of a weight; MXFP8's kernel writes rows and columns of what it has read."""
        if self.products == "fp8" and self.scaling == "mx":
            return WIDE + (1 if self.frozen else 2) * MXFP8
        return self.quantizing if self.products else 0.0

    @property
    def waiting(self) -> float | None:
        """Bytes of an element of a quantized operand that waits for backward; None: it waits as it came.

        Transformer Engine keeps the copy by columns alone (update_usage of module/linear.py), torchao the original.
        """
        if not self.products or self.keeps_wide:
            return None
        if self.products == "nvfp4":
            return NVFP4
        return MXFP8 if self.scaling == "mx" else 1.0

    @property
    def agreed(self) -> bool:
        """Whether an operand's largest value is found in this pass, one for all ranks that have a part of it."""
        return self.products == "nvfp4" or (
            self.products == "fp8" and self.scaling == "dynamic"
        )

    @property
    def activation_finds(self) -> bool:
        """The activation's kernel finds the largest value of what it makes; rotated values have another."""
        rotated = self.products == "nvfp4" and self.rotates
        return self.casts and self.agreed and not rotated

    @property
    def activation_writes(self) -> bool:
        """The activation's kernel writes quantized values itself: their scales are there, or are those of blocks."""
        known = self.scaling in ("delayed", "mx")
        return self.casts and self.products == "fp8" and known

    @property
    def written(self) -> float:
        """Bytes of an element that the activation's kernel writes."""
        if not self.activation_writes:
            return WIDE
        return 1.0 if self.scaling == "delayed" else (2 - self.frozen) * MXFP8

    @property
    def left(self) -> float:
        """Bytes of an element that are moved behind an activation that writes it quantized.

        The transposed copy is made of the fp8 one; of MXFP8 what its fitted bytes have beyond reading and writing.
        """
        if self.scaling == "delayed":
            return 2.0 * (self.quantizing - WIDE - self.written)
        return self.quantizing - WIDE - self.written

    def gathered_size(self, itemsize: int, readings: int = 1) -> float:
        """Bytes of an element on its way to the products that read it, by rows or by columns.

        Blocks along rows are no blocks along columns: both travel (Transformer Engine, distributed.py:
        _all_gather_nvfp4, _all_gather_mxfp8).
        """
        if self.products == "nvfp4":
            return readings * NVFP4
        if self.products and self.scaling == "mx":
            return readings * MXFP8
        return 1.0 if self.products else float(itemsize)


def gemm(
    t: Tape, m: int, n: int, k: int, layout: str, o: Numbers, reserved: int = 0
) -> None:
    """A GEMM in the run's number format; ``reserved``: SMs that it leaves to others."""
    if not o.products:
        multiply_sizes(t, m, n, k, layout, reserved=reserved)
        return
    # Row scales are applied in fp32, as those of blocks are.
    by_rows = o.scaling == "rowwise" and o.products == "fp8"
    dtype = "fp8_block" if by_rows else o.products
    narrow = forward_layout(dtype) if layout == "nt" else "nt"
    multiply_narrow(t, m, n, k, dtype, narrow, reserved)


def quantize(
    t: Tape,
    elements: int,
    o: Numbers,
    agree: Callable[[], None] | None = None,
    activated: bool = False,
    calls: int = 1,
) -> None:
    """An operand of an fp8 GEMM: read in bf16, written in fp8 as it is and transposed (fp8 GEMMs take rows only).

    Where its largest value is found first, that is a kernel of its own between two of one thread, which clear the
    value and make the scale of it (Transformer Engine, common/recipe/current_scaling.cu); ``agree`` is what ranks that
    have a part each do before the scale is made. ``activated``: an activation's kernel made the operand, and did a part
    of this where the operation fuser has it. ``calls``: 0 where another operand's call quantizes this one, too.
    """
    if not o.products:
        return
    if activated and o.activation_writes:
        if o.left:
            t.cpu("quantize", calls)
            pass_over(t, elements, o.left * elements)
        return
    t.cpu("quantize", calls)
    moved = o.quantizing * elements
    if o.agreed:
        t.launch(SCALAR)
        if not (activated and o.activation_finds):
            pass_over(t, elements, FOUND * elements)
        if agree is not None:
            agree()
        t.launch(SCALAR)
        moved -= FOUND * elements
    pass_over(t, elements, moved)


def quantized(t: Tape, x: Tensor, o: Numbers) -> Tensor:
    """An operand as it waits for backward: the copy in the products' type, or what came where there is none.

    What runs again in backward is quantized there (``save_original_input``).
    """
    if o.waiting is None or x.storage is None or x.storage.size < x.size:
        return x  # in 16 bits, made again in backward, or such a copy already
    copy = unsaved(x)
    copy.storage = Storage(t.memory, x.elements * o.waiting, x.storage.owner)
    return copy


def cast_again(t: Tape, elements: int, o: Numbers) -> None:
    """A weight that the operation fuser casts in every microbatch, others in a step's first one only.

    Counted in every pass: as many bytes as the casts of a step's later microbatches move on average (Transformer
    Engine, ops/basic/basic_linear.py; module/linear.py, is_first_microbatch).
    """
    if o.casts and o.products and o.recasts and o.scaling != "rowwise":
        t.cpu("quantize", o.recasts)
        pass_over(t, elements, o.recasts * o.quantizing * elements)


def transpose_weight(t: Tape, elements: int, o: Numbers) -> None:
    """A weight in fp8 that is transposed for its input's gradient, where no copy is kept: read and written."""
    one_scale = o.scaling in ("delayed", "dynamic")
    if o.transposes_weights and o.products == "fp8" and o.transposes and one_scale:
        t.cpu("quantize")
        pass_over(t, elements, 2.0 * elements)
