"""Times of ATen operations (kinds "aten ..."), read between measured ones of the same kind, layout and types.

A base that grows with what the hardware must do is corrected by what rows near it say, in octaves of the sizes. Beyond
the rows the correction of the nearest edge holds, so a time grows as its base does. Where a kind, layout or type has no
rows, those of the likest stand in; where the kind has none at all, all streams by their bytes do.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.tables import Scattered, toward
from prestep.sim.graph.kernel import Kernel

PREFIX = "aten "
#: The kind that stands for all operations over elements.
STREAM = "aten stream"
#: Kinds that run as another does, where they have no rows themselves.
LIKE = {
    "aten addmm": "aten mm",
    "aten baddbmm": "aten bmm",
    "aten addbmm": "aten bmm",
    "aten _safe_softmax": "aten _softmax",
    "aten _foreach_sub_": "aten _foreach_add_",
    "aten _fused_adam_": "aten _fused_adamw_",
    "aten flex_attention": "aten _scaled_dot_product_flash_attention",
    "aten flex_attention_backward": "aten _scaled_dot_product_flash_attention_backward",
}
PRODUCTS = (
    "aten mm",
    "aten addmm",
    "aten bmm",
    "aten baddbmm",
    "aten _scaled_mm",
    "aten _grouped_mm",
)
BATCHED = ("aten bmm", "aten baddbmm")
#: Types that run at the same speed, where one has no rows.
ALIKE = {"fp16": "bf16", "bf16": "fp16", "int32": "fp32", "fp32": "int32"}
#: Types of products and attention that CUDA cores compute: how rows of others lie in memory says nothing of them.
WITHOUT_TENSOR_CORES = ("fp32", "fp64")
#: Where corrections start: the shortest operation, s, and shares of the datasheet's limits (guesses).
FLOOR, MEMORY, ARITHMETIC = 1.5e-6, 0.88, 0.6
#: Elements/s that are not read in vectors (guess from the rows of such layouts).
ONE_BY_ONE = 0.36e12
#: Seconds of a key in a block of threads of fused attention (guess from the smallest rows).
KEY = 4e-9
#: multi_tensor_apply: elements of a chunk, chunks and tensors of a launch (tensors by lists; PyTorch's source).
CHUNK, CHUNKS, TENSORS = 65536, 320, (110, 64, 48, 36, 30)
#: Kinds that run so; bytes/s of one block of threads and seconds of a launch (guesses where corrections start).
LISTS = ("aten _foreach", "aten _fused_adam", "aten _fused_sgd", "aten _amp_foreach")
BLOCK, LAUNCH = 50e9, 1.5e-6
NOISE = 0.03  # measured: repetitions on another start of the machine differ by 3.5 % on the mean
# Octaves (guess): cuDNN's masked kernels for heads of 129 to 192 take three times what those of 128 and 256 suggest;
# convolutions in groups of 24 or 56 channels take two to ten times what those of 16, 32 or 64 do for as many flops.
UNTUNED = 4.0
JITTER = 0.3e-6  # guess, s: that by which the shortest kernels differ
KINDS_DIFFER = 0.2  # guess: streams of as many bytes and elements by another name


@dataclass(frozen=True)
class AtenRow:
    """One measured operation: seconds of its CUDA kernels, summed, and their count."""

    kernel: Kernel
    seconds: float
    launches: int


def read(path: Path) -> list[AtenRow]:
    """Rows of a table: kind, layout, types, shape (sizes joined by x), bytes, flops, microseconds, launches."""
    with path.open(newline="") as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def _row(fields: dict[str, str]) -> AtenRow:
    kernel = Kernel(
        PREFIX + fields["kind"],
        tuple(int(size) for size in fields["shape"].split("x")),
        fields["dtype"],
        fields["layout"],
        float(fields["bytes"]),
        float(fields["flops"] or 0),
    )
    return AtenRow(kernel, float(fields["us"]) * 1e-6, int(fields["launches"]))


def _octaves(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(max(size, 1.0)) for size in sizes)


def _attention_axes(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, length, kv_length, dim = kernel.shape
    lanes = 0.4 * math.log2(
        batch * heads
    )  # batches scale: what another one tells is worth more
    apart = UNTUNED * ("mask" in kernel.layout and 128 < dim <= 192)
    grouped = 0.3 * (heads != kv_heads)
    return lanes, *_octaves(length, kv_length, dim), grouped, apart


def _convolution_axes(kernel: Kernel) -> tuple[float, ...]:
    n, c, h, w, k, r, s, stride, groups = kernel.shape
    side = math.sqrt(r * s)  # of a square filter of as many elements
    sizes = _octaves(h * w / stride**2, c, k, side, stride, groups)
    return 0.3 * math.log2(n), *sizes, UNTUNED * _odd_groups(c // groups, groups)


def _odd_groups(width: int, groups: int) -> bool:
    """Whether a convolution has groups of several channels, but of no power of two."""
    return groups > 1 and width > 1 and width & (width - 1) > 0


def axes(kernel: Kernel) -> tuple[float, ...]:
    """Position of a kernel among the rows of its kind, in octaves."""
    if _is_attention(kernel):
        return _attention_axes(kernel)
    if "convolution" in kernel.kind and len(kernel.shape) == 9:
        return _convolution_axes(kernel)
    if kernel.kind in BATCHED:
        return 0.3 * math.log2(kernel.shape[0]), *_octaves(*kernel.shape[1:])
    if len(kernel.shape) == 1:
        return *_octaves(kernel.shape[0]), math.log2(kernel.bytes / kernel.shape[0])
    return _octaves(*kernel.shape)


class Surface(Scattered):
    """`base(kernel)` times a correction through the rows of one group (Gaussian-process regression, Matern 3/2).

    Parameters
    ----------
    rows
        Measured operations; those at one position count as their mean.
    base
        Seconds of a kernel before the correction.
    length, spread, noise
        Octaves over which corrections stay alike, their standard deviation in log time, and that of a row.
    """

    def __init__(
        self,
        rows: Iterable[AtenRow],
        base: Callable[[Kernel], float],
        length: float,
        spread: float,
        noise: float,
    ) -> None:
        at_position = _by_position(rows)
        super().__init__(at_position, axes, length, spread)
        self.base, alike = base, at_position.values()
        self.launches = list(map(_launches, alike))
        residual = np.array([_residual(mine, base) for mine in alike])
        variance = np.array([_variance(mine, noise) for mine in alike])
        weights = 1.0 / (variance + spread**2)
        self.mean = float((weights * residual).sum() / weights.sum())
        #: How much each row's correction counts at a distance of 0.
        self.alpha = np.linalg.solve(self.covariance(variance), residual - self.mean)

    def fits(self, kernel: Kernel) -> bool:
        """Whether the kernel has as many sizes as the rows."""
        return len(axes(kernel)) == len(self.low)

    def seconds(self, kernel: Kernel) -> float:
        """Of a kernel: its base with the correction at its position, or at the nearest edge of the rows.

        Far outside the rows it is the base more and more, which is a roofline.
        """
        position = np.array(axes(kernel))
        at = np.clip(position, self.low, self.high)
        correction = self.mean + float(self.near(at) @ self.alpha)
        base = self.base(kernel)
        octaves = float(np.abs(position - at).max())
        return toward(base, base * math.exp(correction), octaves)

    def starts(self, kernel: Kernel) -> int:
        """CUDA kernels that the nearest row launches."""
        return self.launches[int(self.distances(kernel).argmin())]


def _by_position(rows: Iterable[AtenRow]) -> dict[tuple[float, ...], list[AtenRow]]:
    """Rows by where they lie (`axes`), in the order in which they come."""
    at: dict[tuple[float, ...], list[AtenRow]] = {}
    for row in rows:
        at.setdefault(axes(row.kernel), []).append(row)
    return at


def _launches(rows: list[AtenRow]) -> int:
    """CUDA kernels that rows at one position launch."""
    return round(_mean(row.launches for row in rows))


def _residual(rows: list[AtenRow], base: Callable[[Kernel], float]) -> float:
    """Mean log of the time of rows at one position over their base."""
    return _mean(math.log(row.seconds / base(row.kernel)) for row in rows)


def _variance(rows: list[AtenRow], noise: float) -> float:
    """Of the log of the mean time of rows at one position."""
    shortest = min(row.seconds for row in rows)
    return (noise**2 + (JITTER / shortest) ** 2) / len(rows)


def _mean(values: Iterable[float]) -> float:
    members = list(values)
    return sum(members) / len(members)


class Base:
    """What an operation must at least do, which rows correct: its product by tiles, else arithmetic and bytes.

    Parameters
    ----------
    product
        Seconds of a "gemm" or a "grouped_gemm" by its tiles.
    roofline
        Limits of the GPU.
    """

    def __init__(self, product: Callable[[Kernel], float], roofline: Roofline) -> None:
        self._product, self._roofline = product, roofline

    def __call__(self, kernel: Kernel) -> float:
        if is_product(kernel):
            return self._product(_as_gemm(kernel))
        memory = kernel.bytes / (MEMORY * self._roofline.bandwidth)
        arithmetic = kernel.flops / (ARITHMETIC * self._roofline.peak_of(kernel.dtype))
        if _is_attention(kernel):
            arithmetic = max(arithmetic * _padding(kernel), _one_block(kernel))
        return FLOOR + max(memory, arithmetic, _by_element(kernel), _by_chunk(kernel))


def _is_attention(kernel: Kernel) -> bool:
    return "attention" in kernel.kind and len(kernel.shape) == 6


def _padding(kernel: Kernel) -> float:
    """Arithmetic of fused attention over that of its scores: tiles of 64 columns and 128 rows are filled up."""
    *_, length, kv_length, dim = kernel.shape
    filled = (
        64 * math.ceil(dim / 64),
        *(128 * math.ceil(n / 128) for n in (length, kv_length)),
    )
    return math.prod(filled) / (dim * length * kv_length)


def _one_block(kernel: Kernel) -> float:
    """Seconds of a block of threads, which goes through all keys one tile after the other."""
    ways = 2.5 if kernel.kind.endswith("backward") else 1.0
    return ways * kernel.shape[4] * KEY


def _by_element(kernel: Kernel) -> float:
    """What elements take that are read one by one: of several types, or in another order than the result's."""
    one_by_one = kernel.layout or is_mixed(kernel.dtype)
    return (
        kernel.shape[0] / ONE_BY_ONE if len(kernel.shape) == 1 and one_by_one else 0.0
    )


def _by_chunk(kernel: Kernel) -> float:
    """What launches over a list take, each as long as its longest chunk; as many as tensors and chunks need."""
    if not kernel.kind.startswith(LISTS):
        return 0.0
    tensors, elements = kernel.shape
    lists = int(kernel.layout.partition("_")[0] or 1)
    chunk = min(CHUNK, elements / tensors)
    chunks = tensors * math.ceil(elements / tensors / CHUNK)
    launches = math.ceil(max(tensors / TENSORS[min(lists, 5) - 1], chunks / CHUNKS))
    block = chunk * kernel.bytes / elements / BLOCK
    return launches * (LAUNCH + block)


def is_mixed(dtype: str) -> str:
    """ "mixed" where an operation reads or writes several types, which it then does not do in vectors."""
    return "mixed" if "," in dtype or ">" in dtype else ""


def is_product(kernel: Kernel) -> bool:
    """Whether an ATen operation is a matrix product of known sizes."""
    return kernel.kind in PRODUCTS and len(kernel.shape) in (3, 4)


def _as_gemm(kernel: Kernel) -> Kernel:
    """The product as tiles know it; of grouped ones, whose rows are those of all experts, that of each expert."""
    layout = kernel.layout[:2]
    if len(kernel.shape) == 3:
        return Kernel("gemm", kernel.shape, kernel.dtype, layout)
    batched = kernel.kind in BATCHED
    shape = kernel.shape if batched else of_each_expert(kernel)
    return Kernel("grouped_gemm", shape, kernel.dtype, layout)


def of_each_expert(kernel: Kernel) -> tuple[int, ...]:
    """Sizes of one expert's product of a grouped one, whose rows are those of all experts; their number first."""
    experts, m, n, k = kernel.shape
    if kernel.layout.startswith("t"):  # weights' gradients sum over the tokens
        return experts, m, n, max(1, k // experts)
    return experts, max(1, m // experts), n, k
