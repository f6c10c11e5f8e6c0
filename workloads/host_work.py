"""What a host does for an operation, whoever recorded it: its dispatch, and that of the autograd node that calls it."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operation
from prestep.workloads.operators import attention, foreach, norms, products
from prestep.workloads.operators.tensors import base

#: Families of operations that take the host longer than others, by their rules.
FAMILIES = {
    **dict.fromkeys(products.RULES, "aten_product"),
    **dict.fromkeys(attention.RULES, "aten_attention"),
    **dict.fromkeys(norms.RULES, "aten_norm"),
    **dict.fromkeys(foreach.RULES, "aten_list"),
}
CONVOLUTION, ELEMENTWISE, VIEW = "aten_convolution", "aten_elementwise", "view"
LIST, OF_A_LIST = "aten_list", "aten_list_tensor"
#: Copies of FSDP: operators that Python defines, with a list of sizes that goes to the GPU.
SHARDING, OF_SHARDING = "fsdp.", "fsdp_copy"
#: The gradient of a loss by itself, with which a backward pass begins: autograd's engine wakes its threads.
BEGIN, ENGINE = "ones_like", "autograd_engine"
#: What takes longer where autograd calls it: a node is looked up, and its gradients are handed on.
NODES = (VIEW, ELEMENTWISE, "aten_product", "aten_attention", "aten_norm", CONVOLUTION)
#: Bytes a second that one thread moves, computing in the host's memory. Guess: STREAM on one core of a server.
THREAD = 12e9
#: Names of host costs with how often each is spent: where the program calls an operation, and where autograd does.
Work = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]
#: Kernels of an operation, what the host spends on it, and the bytes that it takes until they have run.
Launched = tuple[tuple[Kernel, ...], Work, float]


def host_work(operation: Operation, kernels: tuple[Kernel, ...]) -> Work:
    """What the host spends on an operation, forward and in backward."""
    name = family(operation, kernels)
    further = ((OF_A_LIST, len(operation.operands)),) if name == LIST else ()
    node = f"{name}_backward" if name in NODES else name
    return ((name, 1), *further), ((node, 1), *further)


def family(operation: Operation, kernels: tuple[Kernel, ...]) -> str:
    """The name of an operation's cost; what launches nothing is a view."""
    if operation.name.startswith(SHARDING):
        return OF_SHARDING
    if not kernels:
        return VIEW
    if "convolution" in operation.name:
        return CONVOLUTION
    name = base(operation)
    if name == BEGIN and not operation.operands[0].shape:
        return ENGINE
    return FAMILIES.get(name, ELEMENTWISE)


def extern_work(kernel: Kernel, name: str) -> Work:
    """Dispatch of an operator that compiled code calls; in backward, too, no node of autograd's does."""
    family = CONVOLUTION if "convolution" in name else FAMILIES.get(name)
    if family is None or kernel.kind != f"aten {name}":
        return (), ()
    return ((family, 1),), ((family, 1),)


def bandwidth(threads: int, memory: float) -> float:
    """Bytes a second that a rank moves as it computes on its host: by so many threads, or by all (0)."""
    return min(threads * THREAD, memory) if threads else memory
