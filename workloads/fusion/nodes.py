"""The operations of a compiled function as nodes over values: pointwise, reductions, and those that stay as they are.

In-place operations make a new version of what they change, as AOTAutograd's functions do. Softmax and norms are what
they are decomposed into: a reduction over rows and a pointwise operation that uses its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import (
    OPAQUE,
    Node,
    Read,
    Space,
    Step,
    Value,
    Versions,
)
from prestep.workloads.operation import ELEMENT_BYTES, Operand, Operation, words
from prestep.workloads.operators import pointwise, reductions
from prestep.workloads.operators.rules import FUNCTIONAL
from prestep.workloads.operators.scratch import scratch
from prestep.workloads.operators.tensors import base, stored

#: Stands for an exchange among what a compiled function launches.
EXCHANGE = Kernel("exchange", ())
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
#: Layouts of products with unaligned rows, and multiplications for each element moved from which on they are padded
#: (torch._inductor.fx_passes.pad_mm: peak over bandwidth; Hopper's).
UNALIGNED, COMPUTE_BOUND = ("_odd", "_even"), 200


def padded(node: Node, operation: Operation, versions: Versions) -> tuple[Node, ...]:
    """The copies of its operands that a product needs first, and the product of them; other nodes as they are."""
    if not _is_padded(node):
        return (node,)
    matrices = [each for each in operation.operands if len(each.shape) > 1][-2:]
    step = 16 // ELEMENT_BYTES[matrices[0].dtype]
    copies: list[Node] = []
    reads = list(node.reads)
    for at, matrix in enumerate(matrices, start=len(reads) - 2):
        if any(size % step for size in matrix.shape[-2:]):
            copy = _pad(reads[at], matrix, step, versions)
            value, size = copy.writes[0]
            reads[at] = Read(value, 0, size)
            copies.append(copy)
    kernels = (_aligned(node.kernels[-1], step),)
    return *copies, replace(node, reads=tuple(reads), kernels=kernels)


def _is_padded(node: Node) -> bool:
    """Whether a node is a product with unaligned rows that arithmetic bounds."""
    if node.name not in PRODUCTS or not node.kernels[-1].layout.endswith(UNALIGNED):
        return False
    m, n, k = node.kernels[-1].shape[-3:]
    return m * n * k >= COMPUTE_BOUND * (m * n + m * k + n * k)


def _pad(read: Read, matrix: Operand, step: int, versions: Versions) -> Node:
    rows, columns = (-(-size // step) * step for size in matrix.shape[-2:])
    elements = matrix.elements // prod(matrix.shape[-2:]) * rows * columns
    size = float(elements * ELEMENT_BYTES[matrix.dtype])
    value = versions.unnamed()
    return Node("pad", (read,), ((value, size),), Space(matrix.elements), again=True)


def _aligned(kernel: Kernel, step: int) -> Kernel:
    """The product of padded operands."""
    *batch, m, n, k = kernel.shape
    whole = tuple(-(-size // step) * step for size in (m, n, k))
    layout = kernel.layout
    for ending in UNALIGNED:
        layout = layout.removesuffix(ending)
    flops = kernel.flops * prod(whole) / (m * n * k)
    return replace(kernel, shape=(*batch, *whole), layout=layout, flops=flops)


#: Longest rows that Inductor reduces in one go; it loops over longer ones (torch._inductor: persistent reductions).
PERSISTENT = 1024
OF_ELEMENTS = {
    "sin": ("sin",),
    "cos": ("cos",),
    "erf": ("erf",),
    "native_dropout": ("random",),
    "bernoulli": ("random",),
    "rand": ("random",),
    "rand_like": ("random",),
    "randn": ("random",),
    "randn_like": ("random",),
    **{name: (name,) for name in ("rowcast",)},
}
GELU = {"gelu": ("erf", "tanhgelu"), "gelu_backward": ("erfgrad", "tanhgelugrad")}
#: Of looped rows: what a statistic takes, and the operation over elements after it.
OF_ROWS = {
    "_softmax": ("rowmax",),
    "_log_softmax": ("rowmax",),
    "native_layer_norm": ("welford",),
}
AFTER_ROWS = {"_softmax": ("rowexp",), "_log_softmax_backward_data": ("rowexp",)}


def of_elements(name: str, operation: Operation) -> tuple[str, ...]:
    """What an operation over elements evaluates once for each."""
    if name in GELU:
        exact, by_tanh = GELU[name]
        values = (*operation.arguments, *dict(operation.options).values())
        return (by_tanh,) if "tanh" in values else (exact,)
    return OF_ELEMENTS.get(name, ())


def of_rows(name: str, rows: Space) -> tuple[str, ...]:
    """What a statistic of rows evaluates for each element."""
    return OF_ROWS.get(name, ()) if _looped(rows) else ()


def after_rows(name: str, rows: Space) -> tuple[str, ...]:
    """What the operation over elements that follows a statistic evaluates."""
    return AFTER_ROWS.get(name, ()) if _looped(rows) else ()


def _looped(rows: Space) -> bool:
    return not rows.across and rows.rows > 0 and rows.elements / rows.rows > PERSISTENT


#: Operations over elements beside those of `kernels.pointwise`: copies, fills, and picking by index.
MAPPED = frozenset(pointwise.RULES) | frozenset(
    words(
        "clone _to_copy copy copy_ contiguous fill fill_ zero_ zeros ones full zeros_like ones_like full_like "
        "new_zeros new_ones new_full scalar_tensor arange masked_fill cat stack slice_backward select_backward "
        "constant_pad_nd repeat roll flip tril triu tril_ triu_ embedding index_select index gather "
        "nll_loss_backward mse_loss_backward largest rowcast"
    )
)
#: Reductions whose result is as large as what they reduce: a statistic of each row, then an operation over elements.
NORMALIZING = frozenset(
    words(
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm "
        "native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_batch_norm"
    )
)
REDUCING = frozenset(reductions.NAMES) | {"nll_loss_forward", "mse_loss"}
#: Those that read as many elements of each operand as they write, wherever they lie.
PICKING = frozenset(
    words("embedding index_select index gather nll_loss_forward nll_loss_backward")
)
#: Those that overwrite all of their first operand, or of which only shape and type are asked for.
WRITING = frozenset(
    words(
        "copy_ fill_ zero_ zeros_like ones_like full_like new_zeros new_ones new_full slice_backward"
    )
)
#: What can not be computed a second time with the same result.
RANDOM = frozenset(
    words(
        "native_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint normal normal_ uniform_ random_"
    )
)
#: Bytes that a single element takes: a sector of the L2 (datasheet).
PICKED = 32.0
COMPLEX = ("complex32", "complex64", "complex128")


def nodes_of(
    steps: Iterable[Step],
    operations: Sequence[Operation],
    kernels: Sequence[tuple[Kernel, ...]],
    versions: Versions,
) -> list[Node]:
    """The nodes of a region's operations, in order; views are none, nor is what was computed before."""
    nodes: list[Node] = []
    before: dict[object, Node] = {}
    for step in steps:
        operation = operations[step.operation]
        for each in _nodes(step, operation, kernels[step.operation], versions):
            node = versions.original(each)
            key = step.operation, node.space, node.reads
            if key in before and node.space and node.name not in RANDOM:
                versions.repeats(node, before[key])
                continue
            before.setdefault(key, node)
            nodes.append(node)
    return nodes


def _nodes(
    step: Step, operation: Operation, kernels: tuple[Kernel, ...], versions: Versions
) -> tuple[Node, ...]:
    name, communicates = base(operation), operation.name.startswith(FUNCTIONAL)
    if not kernels and name not in MAPPED and not communicates:
        return ()
    reads = _reads(step, operation, versions)
    writes = _writes(step, operation, versions)
    if name == "embedding_dense_backward":
        return (Node(name, reads, writes, None, _scattered(operation)),)
    if communicates:
        return (Node(name, reads, writes, None, (EXCHANGE,)),)
    if not _is_compiled(name, operation):
        size = 0.0 if operation.name.startswith(OPAQUE) else scratch(operation)
        if size:
            writes = *writes, (versions.unnamed(), size)
        return padded(Node(name, reads, writes, None, kernels), operation, versions)
    if name in NORMALIZING:
        rows = _rows(name, kernels[-1])
        whole = operation.results[0].elements == rows.elements
        return _normalizing(name, reads, writes, rows, whole, versions)
    space = _space(name, operation, kernels)
    functions = of_elements(name, operation)
    again = name not in RANDOM
    return (Node(name, reads, writes, space, again=again, functions=functions),)


def _writes(
    step: Step, operation: Operation, versions: Versions
) -> tuple[tuple[Value, float], ...]:
    """New values of what an operation writes on the GPU, and their bytes."""
    places = zip(step.writes, operation.results, strict=True)
    return tuple(
        (versions.write(place[0]), float(stored(operand)))
        for place, operand in places
        if place[0]
    )


def _scattered(operation: Operation) -> tuple[Kernel, ...]:
    """Gradients of an embedding: zeros in fp32, rows added to them, and a cast where weights are smaller."""
    gradients, table = operation.operands[0], operation.results[0]
    sums = 4.0 * table.elements
    rows = gradients.elements * (ELEMENT_BYTES[gradients.dtype] + 8.0)  # read, added
    moved = [(table.elements, sums), (gradients.elements, rows)]
    if table.dtype != "fp32":
        moved.append((table.elements, sums + table.bytes))
    return tuple(
        Kernel("fused_pointwise", (elements,), bytes=size) for elements, size in moved
    )


def _is_compiled(name: str, operation: Operation) -> bool:
    """Whether Inductor generates code for it; complex numbers and what lies on the host are left alone."""
    tensors = (*operation.operands, *operation.results)
    if operation.name.startswith(OPAQUE) or any(
        each.dtype in COMPLEX or (each.device == "cpu" and each.shape)
        for each in tensors
    ):
        return False
    return name in MAPPED or name in NORMALIZING or name in REDUCING


def _reads(step: Step, operation: Operation, versions: Versions) -> tuple[Read, ...]:
    name = base(operation)
    limit = _limit(name, operation)
    places = list(zip(step.reads, operation.operands, strict=True))
    if name in WRITING:
        places = [pair for pair in places if pair[0] not in step.writes]
    joins = name in ("cat", "stack")
    return tuple(
        Read(
            versions.read(place[0]),
            place[1],
            min(float(stored(operand)), limit),
            at + 1 if joins else 0,
            name in PICKING,
            _across(operand, operation),
        )
        for at, (place, operand) in enumerate(places)
        if place[0] and operand.elements
    )


def _across(operand: Operand, operation: Operation) -> int:
    """Elements of an operand whose neighbours in memory are not those of the result; 0 where they are, or broadcast."""
    whole = (*operation.results, *operation.operands)[0]
    if not operand.strides or operand.elements != whole.elements:
        return 0
    steps = [
        step
        for size, step in zip(operand.shape, operand.strides, strict=True)
        if size > 1
    ]
    return operand.elements if steps and steps[-1] > min(steps) else 0


def _limit(name: str, operation: Operation) -> float:
    """The most bytes that are read of one operand."""
    if name not in PICKING:
        return float("inf")
    if name.startswith("nll_loss"):
        return PICKED * _targets(operation).elements
    return float(sum(result.bytes for result in operation.results))


def _space(name: str, operation: Operation, kernels: tuple[Kernel, ...]) -> Space:
    result = (*operation.results, *operation.operands)[0]
    if name not in REDUCING:
        return Space(result.elements)
    if name == "nll_loss_forward":
        return Space(_targets(operation).elements, 1)
    return _reduced(kernels[-1])


def _targets(operation: Operation) -> Operand:
    """The classes of a loss, among its operands."""
    return next(each for each in operation.operands if each.dtype.startswith("int"))


def _reduced(kernel: Kernel) -> Space:
    rows, columns = (*kernel.shape, 1)[:2]
    if len(kernel.shape) == 1:
        rows, columns = 1, kernel.shape[0]
    return Space(rows * columns, rows, kernel.layout.startswith("outer"))


def _rows(name: str, kernel: Kernel) -> Space:
    if name == "native_batch_norm":  # (elements, channels)
        elements, channels = kernel.shape[:2]
        return Space(elements, channels, across=bool(kernel.layout))
    return _reduced(kernel)


def _normalizing(
    name: str,
    reads: tuple[Read, ...],
    writes: tuple[tuple[Value, float], ...],
    rows: Space,
    whole: bool,
    versions: Versions,
) -> tuple[Node, ...]:
    """Statistics of rows; the elements, if `whole`; with gradients of weights the sums over all rows."""
    statistic = versions.unnamed()
    size = 4.0 * rows.rows
    after = (*reads, Read(statistic, 0, size))
    elements, others = writes[: int(whole)], writes[int(whole) :]
    backward = name.endswith("backward")
    statistics = (statistic, size), *(() if backward else others)
    parts = [Node(name, reads, statistics, rows, functions=of_rows(name, rows))]
    if elements:
        parts.append(_after_rows(name, after, elements, rows))
    if backward and others:
        across = Space(rows.elements, rows.elements // rows.rows, across=True)
        parts += (Node(name, after, (each,), across) for each in others)
    return tuple(parts)


def _after_rows(
    name: str,
    reads: tuple[Read, ...],
    writes: tuple[tuple[Value, float], ...],
    rows: Space,
) -> Node:
    """The operation over elements that uses the statistics of their rows."""
    again = not name.endswith("backward")
    functions = after_rows(name, rows)
    return Node(name, reads, writes, Space(rows.elements), (), again, functions)
