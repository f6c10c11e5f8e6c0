"""What the host does for a recorded operation: its dispatch, and that of the autograd node that calls it."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operation
from prestep.workloads.operators import attention, convolution, foreach, norms, products
from prestep.workloads.operators.tensors import base

#: Families of operations that take the host longer than others, by their rules; names as in capture/captured.toml.
FAMILIES = {
    **dict.fromkeys(products.RULES, "aten_product"),
    **dict.fromkeys(attention.RULES, "aten_attention"),
    **dict.fromkeys(convolution.RULES, "aten_convolution"),
    **dict.fromkeys(norms.RULES, "aten_norm"),
    **dict.fromkeys(foreach.RULES, "aten_list"),
}
ELEMENTWISE, OF_A_LIST = "aten_elementwise", "aten_list_tensor"
#: What launches nothing, as the program and as autograd call it: prices of scenarios' views.
VIEW, VIEW_BACKWARD = "view", "view_backward"
#: Copies of FSDP: operators that Python defines, with a list of sizes that goes to the GPU.
SHARDING, OF_SHARDING = "fsdp.", "fsdp_copy"

#: Bytes a second that one thread moves, computing in the host's memory. Guess: STREAM on one core of a server.
THREAD = 12e9

Work = tuple[tuple[str, int], ...]


def host_work(operation: Operation, kernels: tuple[Kernel, ...]) -> Work:
    """Names of host costs with how often each is spent; launches are apart."""
    return tuple(_work(operation, kernels))


def bandwidth(threads: int, memory: float) -> float:
    """Bytes a second that a rank moves as it computes on its host: by so many threads, or by all (0)."""
    return min(threads * THREAD, memory) if threads else memory


def family(operation: Operation, kernels: tuple[Kernel, ...]) -> str:
    """The name of an operation's cost; what launches nothing is a view."""
    if operation.name.startswith(SHARDING):
        return OF_SHARDING
    return FAMILIES.get(base(operation), ELEMENTWISE) if kernels else VIEW


def _work(
    operation: Operation, kernels: tuple[Kernel, ...]
) -> Iterator[tuple[str, int]]:
    name = family(operation, kernels)
    yield name, 1
    if name == "aten_list":
        yield OF_A_LIST, len(operation.operands)
