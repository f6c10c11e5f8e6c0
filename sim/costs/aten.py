"""Times of ATen operations (kinds "aten ..."), read between measured ones of the same kind, layout and types.

A base that grows with what the hardware must do is corrected by what rows near it say, in octaves of the sizes. Beyond
the rows the correction of the nearest edge holds, so a time grows as its base does. Where a kind, layout or type has no
rows, those of the likest stand in; where the kind has none at all, all streams by their bytes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from prestep.sim.costs import convolutions
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.kinds import DTYPE_BYTES, work
from prestep.sim.graph.kernel import (
    CHUNK,
    CHUNKS,
    PREFIX,
    TENSORS,
    Kernel,
    plain_product,
)
from prestep.sim.graph.kernel import PRODUCTS as MATRIX_PRODUCTS
from prestep.sim.graph.kernel import product as product_of

#: The kind that stands for all operations over elements.
STREAM = "aten stream"
#: Kinds that run as another does, where they have no rows themselves.
LIKE = {
    **dict.fromkeys(("aten addmm", "aten addmm_", "aten _addmm_activation"), "aten mm"),
    "aten baddbmm": "aten bmm",
    "aten addbmm": "aten bmm",
    "aten _safe_softmax": "aten _softmax",
    "aten native_layer_norm_backward": "aten _fused_rms_norm_backward",
    "aten _foreach_sub_": "aten _foreach_add_",
    "aten _fused_adam_": "aten _fused_adamw_",
    "aten flex_attention": "aten _scaled_dot_product_flash_attention",
    "aten flex_attention_backward": "aten _scaled_dot_product_flash_attention_backward",
}
PRODUCTS = (*MATRIX_PRODUCTS, "aten bmm", "aten baddbmm", "aten _grouped_mm")
#: Types that run at the same speed, where one has no rows.
ALIKE = {"fp16": "bf16", "bf16": "fp16", "int32": "fp32", "fp32": "int32"}
#: Where corrections start: the shortest operation, s, and shares of the datasheet's limits (guesses).
FLOOR, MEMORY, ARITHMETIC = 1.5e-6, 0.88, 0.6
#: Seconds that a bias adds to a product, and to an element of its result (median of H200's and H100's rows).
BIAS = 0.2e-6, 0.05e-12
#: Products in FP8 whose sums are not kept in 32 bits, and their time over that of others (median of 14 shapes: H200).
FAST, FEWER_BITS = "_fast", 0.95
#: Elements/s that are not read in vectors (guess from the rows of such layouts).
ONE_BY_ONE = 0.36e12
#: Seconds of a key in a block of threads of fused attention, and of a query backward (guesses from the smallest rows;
#: where queries are many and keys few, corrections make 23 to 29 ns of it).
KEY, QUERY = 4e-9, 10e-9
#: Columns and rows of a tile of fused attention; memory-efficient attention's kernels are named "64x64", and heads of
#: 16 take as long as those of 32 (measured: 15 to 19 TFLOP/s over tiles of 64 from 16 to 1,024 tokens, heads of 32).
TILE, TILE_OF_EFFICIENT = (64, 128), (32, 64)
#: Kinds that run so; bytes/s of one block of threads and seconds of a launch (guesses where corrections start).
LISTS = ("aten _foreach", "aten _fused_adam", "aten _fused_sgd", "aten _amp_foreach")
BLOCK, LAUNCH = 50e9, 1.5e-6
#: Recurrent layers: gates of a state, and seconds of what computes them in each step (measured: 2 to 4 us).
RECURRENT, GATES, GATE = "aten _cudnn_rnn", {"lstm": 4, "gru": 3}, 2.5e-6
#: Seconds of a row that a block of threads copies, whatever its width (measured: 80 to 640 us of 131,072 to 1,048,576).
ROW = 0.6e-9
#: A loss picks scores by one block of threads: seconds of a row up to so many, and of each beyond (measured).
PICKED, THREADS = "aten nll_loss_forward", 2048
EACH_THREADS, EACH_ROUND = 7.5e-9, 0.11e-9
#: A kernel for each picture whose threads write a patch one element after the other: seconds of both (measured: 3.5 to
#: 6 us; 70 to 140 ns).
PATCHES, EACH_PICTURE, OF_PATCH = "aten im2col", 3.5e-6, 0.1e-6
BY_ROWS = ("aten index", "aten index_select", "aten gather")  # kinds that copy so
#: Reductions along rows: threads that run at once (four blocks of 512 on each of 132 SMs), of which a row takes up to
#: a warp, and seconds until the next blocks begin (measured: 1.9 us of sums of 8 to 32 elements, others 2 to 4).
REDUCED = (
    *("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod"),
    *("any", "all", "var", "std", "var_mean", "linalg_vector_norm", "logsumexp"),
)
REDUCING, WARP, ROUND = 132 * 4 * 512, 32, 1.9e-6
#: Running sums across rows: a thread goes along a line, seconds of an element (measured: 0.16 to 0.38 us).
SCANS, EACH_SCANNED = ("aten cumsum", "aten cumprod", "aten logcumsumexp"), 0.25e-6
#: Bags of embeddings: pieces of rows at once, their width, seconds until a bag begins and of each row (measured).
BAGS_BACK = "aten _embedding_bag_backward"
PIECES, PIECE, BEGIN, EACH = 8192, 32, 2.3e-6, 0.5e-6
#: Sorting indices, up to so many by one block and more; seconds of a group of equal ones and of a row that is added
#: (measured: 0.20 to 0.24 ns); what index_put takes beside, for few rows and for more (measured).
SORTED, SORT, GROUP, SORTED_ROW = (4096, 30e-6), 85e-6, 1.1e-9, 0.24e-9
FEW, OF_FEW, OF_MORE = 2048, 22e-6, 45e-6
#: Seconds of a row that is added to the one before, of groups that one warp adds up: of fp32, and of 16 bits
#: (measured: 0.46 to 0.74 and 0.65 to 1.02 us, whatever the width).
ADDED, ADDED_HALF = 0.6e-6, 0.85e-6
#: Batch norms of pictures in the usual order: a block of threads sums up a channel, so many blocks at once. Elements/s
#: of a block forward and backward, whatever the type, and its least seconds (guesses from the largest rows).
NORMS, CHANNELS_AT_ONCE = "batch_norm", 528
CHANNEL_FORWARD, CHANNEL_BACKWARD, LEAST_OF_CHANNEL = 2.2e9, 1.0e9, 4e-6
#: With statistics of the past a block of threads takes a plane of a picture, at so many elements/s (measured: 1.2e9).
PASSED, PLANE = "aten batch_norm_elemt", 1.2e9
KINDS_DIFFER = 0.2  # guess: streams of as many bytes and elements by another name


class Base:
    """What an operation must at least do, which rows correct: its product by tiles, else arithmetic and bytes.

    Parameters
    ----------
    product
        Seconds of a product by its tiles.
    roofline
        Limits of the GPU.
    """

    def __init__(self, product: Callable[[Kernel], float], roofline: Roofline) -> None:
        self._product, self._roofline = product, roofline

    def __call__(self, kernel: Kernel) -> float:
        flops, size = work(kernel)
        memory = size / (MEMORY * self._roofline.bandwidth)
        if kernel.kind.startswith(RECURRENT) and len(kernel.shape) == 5:
            return self._recurrent(kernel)
        if is_product(kernel):
            if is_by_vector(kernel):
                return FLOOR + memory
            fewer = FEWER_BITS if kernel.layout.endswith(FAST) else 1.0
            return fewer * self._product(_as_gemm(kernel))
        arithmetic = flops / (ARITHMETIC * self._roofline.peak_of(kernel.dtype))
        if convolutions.is_convolution(kernel):
            return FLOOR + self._convolution(kernel, arithmetic, memory)
        if kernel.is_attention:
            arithmetic = max(arithmetic * _padding(kernel), _one_block(kernel))
        apart = max(rule(kernel) for rule in APART)
        return FLOOR + _by_group(kernel) + max(memory, arithmetic, apart)

    def _convolution(self, kernel: Kernel, arithmetic: float, memory: float) -> float:
        """Its products, where it is one, with the copies before and after them."""
        passes = [
            self._product(Kernel("gemm", shape, kernel.dtype, "nt"))
            for shape in convolutions.products(kernel)
        ]
        copies = convolutions.turned(kernel, MEMORY * self._roofline.bandwidth)
        apart = convolutions.by_filter(kernel) + convolutions.by_channel(kernel)
        before = copies + convolutions.by_sample(kernel)
        return before + max(memory, math.fsum(passes) or arithmetic, apart)

    def _recurrent(self, kernel: Kernel) -> float:
        """Layers of products of all inputs and, step after step, of the states; weights' gradients are products, too.

        A layer begins a step when the one before has ended it, so layers run side by side where the host is ahead
        (measured: 2 take 0.55 to 1.0 of the sum of their kernels, 3 take 0.4 to 0.7).
        """
        steps, batch, inputs, width, layers = kernel.shape
        out = GATES.get(kernel.layout, 1) * width

        def product(*shape: int) -> float:
            return self._product(product_of(shape, kernel.dtype))

        whole = 3 if kernel.kind.endswith("backward") else 1
        of_inputs = whole * product(steps * batch, out, inputs)
        one = of_inputs + steps * (product(batch, out, width) + GATE)
        return math.sqrt(layers) * one


def _padding(kernel: Kernel) -> float:
    """Arithmetic of fused attention over that of its scores: tiles of rows and columns are filled up."""
    *_, length, kv_length, dim = kernel.shape
    columns, rows = TILE_OF_EFFICIENT if "efficient" in kernel.kind else TILE
    filled = (
        columns * math.ceil(dim / columns),
        *(rows * math.ceil(n / rows) for n in (length, kv_length)),
    )
    return math.prod(filled) / (dim * length * kv_length)


def _one_block(kernel: Kernel) -> float:
    """Seconds of a block of threads, which goes through all keys one tile after the other; backward all queries."""
    *_, queries, keys, _ = kernel.shape
    return queries * QUERY if kernel.kind.endswith("backward") else keys * KEY


def _by_row(kernel: Kernel) -> float:
    """What rows take that are copied or summed by one block of threads each, however short they are."""
    if kernel.kind == PICKED and len(kernel.shape) == 2:
        tokens, _ = kernel.shape
        return EACH_THREADS * min(tokens, THREADS) + EACH_ROUND * tokens
    if kernel.kind.removeprefix(PREFIX) in REDUCED and not kernel.layout:
        rows, columns = (*kernel.shape, 1)[:2]
        threads = 1 << int(math.log2(max(1, min(columns, WARP))))
        return math.ceil(rows * threads / REDUCING) * ROUND
    if kernel.kind in SCANS and kernel.layout == "outer":
        return kernel.shape[-1] * EACH_SCANNED
    if kernel.kind == PATCHES and len(kernel.shape) == 3:
        pictures, _, elements = kernel.shape
        return pictures * (EACH_PICTURE + OF_PATCH * elements)
    if kernel.kind == "aten _embedding_bag" and len(kernel.shape) == 4:
        indices, width, bags, _ = kernel.shape
        rounds = math.ceil(bags * math.ceil(width / PIECE) / PIECES)
        return rounds * (BEGIN + EACH * indices / bags)
    of_bags = kernel.kind == BAGS_BACK and "sparse" in kernel.layout
    # Rows that are no multiples of 16 bytes are copied element by element.
    row = kernel.shape[-1] * DTYPE_BYTES.get(kernel.dtype, 1)
    by_rows = kernel.kind in BY_ROWS and len(kernel.shape) == 2 and row % 16 == 0
    return kernel.shape[0] * ROW if by_rows or of_bags else 0.0


def _by_channel(kernel: Kernel) -> float:
    """What sums over channels take, one block of threads for each: instance norms have a channel for every picture."""
    if NORMS not in kernel.kind or len(kernel.shape) != 2 or kernel.layout:
        return 0.0
    elements, channels = kernel.shape
    if kernel.kind == PASSED:
        return max(elements / ONE_BY_ONE, channels * ROW, elements / channels / PLANE)
    backward = kernel.kind.endswith("backward")
    rate = CHANNEL_BACKWARD if backward else CHANNEL_FORWARD
    rounds = max(1.0, channels / CHANNELS_AT_ONCE)
    return rounds * max(LEAST_OF_CHANNEL, elements / channels / rate)


def _by_group(kernel: Kernel) -> float:
    """What sums by index take that sort: the sort, then each group of equal indices, one element after the other."""
    if kernel.kind == BAGS_BACK and "sparse" not in kernel.layout:
        indices, _, _, rows = kernel.shape
        groups = rows * -math.expm1(-indices / rows)  # of indices at random
        return (SORTED[1] if indices <= SORTED[0] else SORT) + groups * GROUP
    if kernel.kind == "aten index_put" and len(kernel.shape) == 3:
        rows, _, meeting = kernel.shape
        start = OF_FEW if rows <= FEW else OF_MORE
        added = ADDED_HALF if kernel.dtype in ("bf16", "fp16") else ADDED
        return start + SORTED_ROW * rows + added * meeting
    return 0.0


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


#: What may take longer than arithmetic and bytes.
APART = (_by_element, _by_chunk, _by_row, _by_channel)


def is_mixed(dtype: str) -> str:
    """ "mixed" where an operation reads or writes several types, which it then does not do in vectors."""
    return "mixed" if "," in dtype or ">" in dtype else ""


def is_product(kernel: Kernel) -> bool:
    """Whether an ATen operation is a matrix product of known sizes."""
    return kernel.kind in PRODUCTS and len(kernel.shape) in (3, 4)


def is_by_vector(kernel: Kernel) -> bool:
    """Whether a product is one of a matrix by a vector, which has kernels of its own that memory bounds."""
    return is_product(kernel) and min(kernel.shape[-3:-1]) == 1


def _as_gemm(kernel: Kernel) -> Kernel:
    """The product as tiles know it, which moves every operand once."""
    if kernel.is_product:
        return plain_product(kernel)
    kind = LIKE.get(kernel.kind, kernel.kind)  # without a bias
    return Kernel(kind, kernel.shape, kernel.dtype, kernel.layout[:2])
