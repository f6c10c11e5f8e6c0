"""Device memory of a recorded step: its storages as blocks of PyTorch's allocator, by owner and by module.

No recording shows what C++ takes and gives back inside an operation; that follows from the operation (`scratch`).
"""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.recording import RankRecording
from prestep.workloads.memory.account import Memory
from prestep.workloads.memory.allocator import Allocator

#: Kinds that cuBLAS runs.
PRODUCTS = ("aten mm", "aten addmm", "aten bmm", "aten baddbmm")
OPERATIONS = ("operate", "operate_compiled")
#: Owners of memory: allocated during the step, or present before it with no known owner.
STEP, FOUND = "activations", "buffers"
#: The number of what is no storage of the program's.
PASSING = -(2**31)


class DeviceMemory:
    """Storages of one rank as they come and go, in the account of its memory.

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
        compiled = any(event.kind == "region" for event in rank.events)
        memory.in_blocks = True
        memory.allocator = None if compiled else Allocator.of(rank.segments)
        for number, size in sorted(rank.alive.items()):
            self.take(number, size, 0)
        for handle, stream in enumerate(workspaces, 1):
            memory.take(workspace, "workspace", -handle, stream)
        memory.reset_peak()
        memory.rebuilt = _buckets(rank)

    def take(self, number: int, size: float, stream: int) -> None:
        """A storage that the step allocates."""
        module = self.rank.modules.get(number, "")
        self.memory.take(size, self._owner(number), number, stream, module)

    def pass_through(self, size: float, stream: int) -> None:
        """What an operation takes and gives back while it runs."""
        self.memory.give_back(self.memory.take(size, STEP, PASSING, stream))

    def _owner(self, number: int) -> str:
        found = FOUND if self.rank.owners else "parameters"
        nobody = found if number in self.rank.alive else STEP
        return self.rank.owners.get(number, nobody)


def _buckets(rank: RankRecording) -> list[int]:
    """Storages of DDP's buckets, which its second step allocates anew: gradients that an all-reduce takes whole."""
    if not any(event.kind == "ddp" for event in rank.events):
        return []
    asked = (e.values for e in rank.events if e.kind == "communicate")
    reduced = {each["bytes"] for each in asked if each["kind"] == "all_reduce"}
    same_size = ((n, size) for n, size in rank.alive.items() if size in reduced)
    return [number for number, _ in same_size if rank.owners.get(number) == "gradients"]


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
