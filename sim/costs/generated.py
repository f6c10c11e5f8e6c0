"""Kernels that a compiler generates: what their arithmetic takes, where it is more than moving their bytes.

Most of them stream. Sines, random numbers and looped softmax do not: H100 and H200, whose SMs are the same, take the
same time for them, though one's memory is 1.43 times as fast (`python -m lab.fit.generated`).
"""

from __future__ import annotations

from dataclasses import replace

from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.graph.kernel import Kernel

KINDS = ("fused_pointwise", "fused_reduction")
#: Operations of CUDA cores (flops of the fp32 peak) that a function of one element takes; layouts are their names,
#: joined by SEPARATOR. Fitted on H100 and H200 (lab/cases/generated): kernels of 2 ** 26 elements and more.
OPERATIONS = {
    "sin": 100.0,
    "cos": 100.0,
    "erf": 99.0,
    "erfgrad": 136.0,
    "tanhgelu": 84.0,
    "tanhgelugrad": 107.0,
    "random": 229.0,
    "rowmax": 87.0,
    "rowexp": 81.0,
    "welford": 105.0,
    # NVFP4's casts in Triton, of GB200: what each further element took from 2,048 x 4,096 to 2,048 x 28,672, as torchao
    # measured (pytorch/ao, benchmarks/prototype/nvfp4_training/README.md; PyTorch 2.12 and 2.13): the largest value
    # after a Hadamard rotation, both rotation and rounding, the same at random, a weight's 16 x 16 blocks.
    "rotatedmax": 42.2,
    "fp4": 137.0,
    "fp4random": 200.2,
    "fp4block": 290.2,
    # MXFP8's casts of a B200 of 1,000 W, by rows (Triton) and by columns (CUDA): what each further element took from
    # 131,072 x 2,048 to 131,072 x 7,168, as torchao measured (pytorch/ao at 2c2d402, prototype/moe_training/README.md).
    "mxrow": 42.6,
    "mxcolumn": 37.0,
    # Casts with a scale for each row, of a step on an H100 (lab/cases/float8, the traced one; PyTorch 2.11,
    # torchao 0.18): gradients by rows, which Inductor makes twice, once for the largest value and once for the cast;
    # activations and gradients by columns, whose elements a thread block does not find side by side.
    "rowcast": 598.0,
    "columncast": 363.0,
}
SEPARATOR = "_"


def streaming(kernel: Kernel) -> Kernel:
    """The kernel without its arithmetic: what its bytes take is in the tables."""
    if kernel.kind not in KINDS or not kernel.layout:
        return kernel
    return replace(kernel, layout="")


def seconds(kernel: Kernel, roofline: Roofline) -> float:
    """Seconds of the functions that a generated kernel evaluates; 0 for other kernels."""
    if kernel.kind not in KINDS or not kernel.layout:
        return 0.0
    operations = sum(OPERATIONS[name] for name in kernel.layout.split(SEPARATOR))
    return kernel.shape[0] * operations / roofline.peak_of("fp32")
