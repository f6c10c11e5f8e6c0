"""Products whose rows start at no multiples of 16 bytes: Inductor copies their operands to rows that do (pad_mm)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Read, Space, Versions
from prestep.workloads.operation import ELEMENT_BYTES, Operand, Operation

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
