"""GEMMs in a run's number format, and the quantizing of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.graph.kernel import Kernel
from workloads.megatron.elementwise import pass_over
from workloads.torch.functional import launch_gemm
from workloads.torch.tape import Tape

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

    @property
    def quantizing(self) -> float:
        """Bytes moved to quantize an element of an operand."""
        if self.frozen:
            return FROZEN[self.scaling]
        return (QUANTIZING if self.transposes else UNTRANSPOSED)[self.scaling]

    @property
    def agreed(self) -> bool:
        """Whether an operand's largest value is found in this pass, one for all ranks that have a part of it."""
        return self.products == "nvfp4" or (
            self.products == "fp8" and self.scaling == "dynamic"
        )

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
        launch_gemm(t, "gemm", m, n, k, layout, reserved=reserved)
        return
    # Row scales are applied in fp32, as those of blocks are.
    by_rows = o.scaling == "rowwise" and o.products == "fp8"
    dtype = "fp8_block" if by_rows else o.products
    moved = float(m * k + n * k + 2 * m * n)
    flops = 2.0 * m * n * k
    shape = (m, n, k)
    t.launch(Kernel("gemm", shape, dtype, "nt", moved, flops, reserved))


def quantize(
    t: Tape, elements: int, o: Numbers, agree: Callable[[], None] | None = None
) -> None:
    """An operand of an fp8 GEMM: read in bf16, written in fp8 as it is and transposed (fp8 GEMMs take rows only).

    Where its largest value is found first, that is a kernel of its own between two of one thread, which clear the
    value and make the scale of it (Transformer Engine, common/recipe/current_scaling.cu); ``agree`` is what ranks that
    have a part each do before the scale is made. In NVFP4 the operand is read once more for its scale and rotated
    (random Hadamard transform): as many bytes.
    """
    if not o.products:
        return
    t.cpu("quantize")
    moved = o.quantizing * elements
    if o.agreed:
        t.launch(SCALAR)
        pass_over(t, elements, FOUND * elements)
        if agree is not None:
            agree()
        t.launch(SCALAR)
        moved -= FOUND * elements
    pass_over(t, elements, moved)
