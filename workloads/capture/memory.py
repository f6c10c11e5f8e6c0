"""Device memory of a recorded step: its storages as blocks of PyTorch's allocator, by owner and by module.

No recording shows what C++ takes and gives back inside an operation; that follows from the operation (`temporary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.allocator import Allocator
from prestep.workloads.capture.recording import RankRecording
from prestep.workloads.operation import Operation
from prestep.workloads.operators.tensors import base, strides_of
from prestep.workloads.torch.memory import Memory
from prestep.workloads.torch.reductions import row_sum_scratch

#: Kinds that cuBLAS runs.
PRODUCTS = ("aten mm", "aten addmm", "aten bmm", "aten baddbmm")
OPERATIONS = ("operate", "operate_compiled")
#: Who has what the step allocates, and what it found and nobody claims.
STEP, FOUND = "activations", "buffers"


class DeviceMemory:
    """Storages of one rank as they come and go.

    Where functions are compiled, the steps before the recorded one did not leave what was reserved then: it follows
    from what is alive alone.

    Parameters
    ----------
    workspaces
        Streams of the handles of cuBLAS, each of which has a workspace of `workspace` bytes for good.
    """

    def __init__(
        self,
        rank: RankRecording,
        memory: Memory,
        workspaces: Sequence[int],
        workspace: float,
    ) -> None:
        self.rank, self.memory = rank, memory
        self._sizes: dict[int, float] = {}
        self._log: list[tuple[int, float]] = []
        self._peak, self._at_peak = 0.0, 0
        compiled = any(event.kind == "region" for event in rank.events)
        self.allocator = Allocator.of(() if compiled else rank.segments)
        for number, size in sorted(rank.alive.items()):
            self._hold(number, size, 0)
        for handle, stream in enumerate(workspaces, 1):
            size = self.allocator.take(-handle, workspace, stream)
            memory.allocate(size, "workspace")
        memory.reset_peak()
        self._peak = memory.now

    def take(self, number: int, size: float, stream: int) -> None:
        """A storage that the step allocates."""
        self._hold(number, size, stream)

    def give_back(self, number: int) -> None:
        size = self._sizes.pop(number)
        self.allocator.give_back(number)
        self.memory.release(size, self._owner(number))
        self._log.append((number, -size))

    def pass_through(self, size: float, stream: int) -> None:
        """What an operation takes and gives back while it runs."""
        taken = self.allocator.take(0, size, stream)
        self.memory.allocate(taken, STEP)
        self.memory.release(taken, STEP)
        self.allocator.give_back(0)

    def finish(self) -> None:
        """The step is over: what was reserved, and whose the bytes at the peak were by module."""
        self.memory.reserved = float(self.allocator.reserved)
        self.memory.modules = self._modules()

    def _hold(self, number: int, size: float, stream: int) -> None:
        held = self.allocator.size_of(number)
        taken = float(held or self.allocator.take(number, size, stream))
        self._sizes[number] = taken
        self.memory.allocate(taken, self._owner(number))
        self._log.append((number, taken))
        if self.memory.now > self._peak:
            self._peak, self._at_peak = self.memory.now, len(self._log)

    def _owner(self, number: int) -> str:
        if not self.rank.owners:
            return "parameters" if number in self.rank.alive else STEP
        return self.rank.owners.get(
            number, FOUND if number in self.rank.alive else STEP
        )

    def _modules(self) -> dict[str, float]:
        """Bytes at the peak of what modules asked for, by their paths."""
        bytes_of: dict[str, float] = {}
        for number, size in self._log[: self._at_peak]:
            name = self.rank.modules.get(number)
            if name:
                bytes_of[name] = bytes_of.get(name, 0.0) + size
        return {name: size for name, size in sorted(bytes_of.items()) if size > 0}


def handles(
    rank: RankRecording, kernels: Sequence[tuple[Kernel, ...]]
) -> tuple[int, ...]:
    """Streams of the rank's handles of cuBLAS: one for every stream of the program's thread and of autograd's.

    Each of them gets a workspace at its first product (ATen/cuda/CublasHandlePool.cpp).
    """
    products = {
        number
        for number, launched in enumerate(kernels)
        if any(kernel.kind in PRODUCTS for kernel in launched)
    }
    pairs = {
        (bool(event.values["backward"]), event.values["stream"])
        for event in rank.events
        if event.kind in OPERATIONS and event.values["operation"] in products
    }
    return tuple(stream for _, stream in sorted(pairs))


#: Operations that first make a tensor as large as their gradient: softmax's, times its output (SoftMax.cu).
AS_LARGE_AS_GRADIENT = ("_softmax_backward_data",)


def temporary(operation: Operation) -> float:
    """Bytes of it."""
    name = base(operation)
    if name in AS_LARGE_AS_GRADIENT:
        return float(operation.operands[0].bytes)
    return _row_sums(operation) if name == "sum" else 0.0


def _row_sums(operation: Operation) -> float:
    """Partial sums over the leading dimensions, as of the gradient of a bias; 0 for other sums."""
    tensor, dimensions = operation.operands[0], operation.arguments[1:2]
    if not dimensions or not isinstance(dimensions[0], tuple):
        return 0.0
    count = len(dimensions[0])
    leading = dimensions[0] == tuple(range(count)) and count < len(tensor.shape)
    if not leading or strides_of(tensor)[-1] != 1:
        return 0.0
    return row_sum_scratch(prod(tensor.shape[:count]), prod(tensor.shape[count:]))
