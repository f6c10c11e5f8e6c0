"""Communication of a program: process groups that connect nobody, and what was asked of them."""

from __future__ import annotations

import functools
import os
import sys
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from prestep.workloads.capture.record.exchange import Exchange, agree
from prestep.workloads.capture.record.streams import Log, Streams
from prestep.workloads.capture.record.values import tensors_in

#: Operations of process groups and their functional twins, by nccl-tests' name and which argument has the bytes of
#: that convention.
NAMES = {
    (
        "all_reduce",
        0,
    ): "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced "
    "all_reduce_coalesced_",
    ("broadcast", 0): "broadcast_ broadcast",
    ("reduce", 0): "reduce_",
    (
        "all_gather",
        0,
    ): "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_",
    (
        "all_gather",
        "result",
    ): "all_gather_into_tensor all_gather_into_tensor_out all_gather_into_tensor_coalesced",
    ("reduce_scatter", 0): "reduce_scatter_tensor reduce_scatter_tensor_coalesced",
    (
        "reduce_scatter",
        1,
    ): "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_",
    ("all_to_all", 0): "all_to_all_single",
    ("all_to_all", 1): "alltoall_base_ alltoall_",
    ("gather", 1): "gather_",
    ("scatter", 0): "scatter_",
    ("send", 0): "send",
    ("recv", 0): "recv_",
    ("barrier", None): "barrier",
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}
#: The functional operation that dresses the result of one, so that its first reader waits (PyTorch 2.13).
DRESSES = "_wrap_tensor_autograd"
FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")


class Works:
    """Handles of what was asked and not waited for, and which tensors wait for which."""

    def __init__(self, exchange: Exchange) -> None:
        self.count = 0
        self.exchange = exchange
        self.groups: dict[str, list[int]] = {}  # ranks of the groups that communicated
        self.described: dict[str, str] = {}  # what the program calls them
        self.handles: list[Handle] = []  # C++ does not keep what belongs to Python
        self.by_storage: dict[int, int] = {}
        self.unawaited: dict[
            int, bool
        ] = {}  # number -> whether Python code asked for it

    def next(self) -> int:
        self.count += 1
        self.unawaited[self.count] = False
        return self.count

    def wait(self, number: int) -> None:
        self.unawaited.pop(number, None)
        Log.current.add("wait_collective", Streams.now.number, number)

    def wait_for_tensor(self, storage: int) -> None:
        """Waits for the functional collective whose result lies in a storage."""
        if storage in self.by_storage:
            self.wait(self.by_storage[storage])

    def settle(self) -> None:
        """What C++ waits for when backward ends (DistributedDataParallel), Python is not told of: wait for all."""
        for number in list(self.unawaited):
            self.wait(number)


class Handle(dist.Work):
    """What a program holds of a communication that it asked for; waiting for it is written down."""

    def __init__(self, works: Works, number: int, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.works, self.number, self.tensors = works, number, tensors

    def wait(self, timeout: Any = None) -> bool:
        self.works.wait(self.number)
        self.tensors = []  # the handle outlives them
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def get_future(self) -> Any:
        done = torch.futures.Future()
        done.set_result(self.tensors)
        self.tensors = []
        return done


def record(
    function: Any,
    arguments: tuple[Any, ...],
    run: Any,
    works: Works,
    see: Any,
    compiled: bool = False,
) -> Any:
    """Writes a communication down and returns what the program expects of it.

    Parameters
    ----------
    run
        Calls the operation on fake tensors; for functional collectives, whose results are new tensors.
    see
        The number of a tensor's storage.
    compiled
        In a compiled function, whose graph waits for a communication as soon as it is asked for.
    """
    namespace, _, name = function._schema.name.partition("::")
    kind = KINDS.get(name, (name, 0))[0]
    if name == "wait_tensor":
        works.wait_for_tensor(see(arguments[0]))
        return run()
    if name == DRESSES:
        # What PyTorch has for fake tensors is a plain tensor, for which nobody would wait.
        if compiled:
            works.wait_for_tensor(see(arguments[0]))
            return arguments[0]
        return AsyncCollectiveTensor(arguments[0])
    if kind == "barrier":
        Log.current.add("barrier")
        return _handle(works, works.next(), [])
    if namespace in FUNCTIONAL:
        result = run()
        number = _communicate(name, arguments, result, works)
        works.by_storage.update((see(t), number) for t in tensors_in(result))
        return result
    number = _communicate(name, arguments, None, works)
    handle = _handle(works, number, tensors_in(arguments[0]))
    return handle if len(function._schema.returns) == 1 else (arguments[0], handle)


def _communicate(
    name: str, arguments: tuple[Any, ...], result: Any, works: Works
) -> int:
    """Writes one communication down; its number. ``result`` is None where the operation writes to its arguments."""
    kind, place = KINDS.get(name, (name, 0))
    tensors = tensors_in(arguments[place] if isinstance(place, int) else result)
    transfer = kind in ("send", "recv")
    number = works.next()
    group = _group(arguments, result is not None, works)
    agree(name, arguments, result, works.groups[group], works.exchange)
    if kind == "all_gather" and result is None and _share(tensors, arguments[1]):
        Log.current.add("in_place", number)
    Log.current.add(
        "communicate",
        Streams.now.number,
        number,
        kind,
        group,
        sum(t.numel() * t.element_size() for t in tensors),
        str(tensors[0].dtype).removeprefix("torch.") if tensors else "uint8",
        int(arguments[2]) if transfer else -1,
        int(arguments[3]) if transfer else 0,
    )
    return number


def _share(outputs: list[torch.Tensor], inputs: Any) -> bool:
    """Whether inputs lie in the outputs, where NCCL does not copy them."""
    memories = {tensor.untyped_storage()._cdata for tensor in outputs}
    return any(t.untyped_storage()._cdata in memories for t in tensors_in(inputs))


def _handle(works: Works, number: int, tensors: list[torch.Tensor]) -> Any:
    handle = Handle(works, number, tensors)
    works.handles.append(handle)
    return handle.boxed()


def _group(arguments: tuple[Any, ...], functional: bool, works: Works) -> str:
    """The name of the group that communicates; its ranks are noted."""
    names = {name: group for group, name in distributed_c10d._world.pg_names.items()}
    name = next((a for a in arguments if isinstance(a, str) and a in names), "0")
    if not functional:
        boxed = [a for a in arguments if isinstance(a, torch.ScriptObject)]
        groups = [a for a in boxed if "ProcessGroup" in str(a._type())]
        name = str(c10d.ProcessGroup.unbox(groups[0]).group_name)
    if name not in works.groups:
        works.groups[name] = list(distributed_c10d._world.pg_group_ranks[names[name]])
        works.described[name] = str(names[name].group_desc)
    return name


def install(works: Works) -> None:
    """Process groups connect nobody; what they would exchange before the first step is this rank's own."""
    answers = {
        "init_process_group": _alone(dist.init_process_group),
        "new_group": _unconnected(dist.new_group),
        "batch_isend_irecv": _batch,
        "all_gather_object": _own_objects,
        "broadcast_object_list": works.exchange.broadcast,
        "send_object_list": works.exchange.send,
        "recv_object_list": works.exchange.receive,
        "gather_object": _gathered_object,
        "scatter_object_list": _scattered_object,
        "barrier": lambda *args, **options: Log.current.add("barrier"),
        "is_nccl_available": lambda: True,
    }
    _replace({getattr(dist, name): answer for name, answer in answers.items()})
    # All ranks run the same program: there is nothing to compare before its first step.
    for module in (dist, distributed_c10d, dist.utils):
        if hasattr(module, "_verify_params_across_processes"):
            module._verify_params_across_processes = lambda *args, **options: None


def _replace(answers: dict[Any, Any]) -> None:
    """Puts functions in the place of others, wherever a module of PyTorch has these by name."""
    modules = [m for name, m in sys.modules.items() if name.startswith("torch")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if type(value) is FunctionType and value in answers:
                setattr(module, name, answers[value])


def _alone(init: Any) -> Any:
    """`init_process_group` for a process that is the only one, whatever the size of the world."""

    @functools.wraps(init)
    def alone(
        backend: Any = None, *_: Any, rank: int = -1, world_size: int = -1, **__: Any
    ) -> None:
        rank = int(os.environ["RANK"]) if rank < 0 else rank
        world = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
        init("fake", store=FakeStore(), rank=rank, world_size=world)

    return alone


def _unconnected(new_group: Any) -> Any:
    """`new_group` whatever backend and timeout were asked for."""

    @functools.wraps(new_group)
    def group(ranks: Any = None, *_: Any, **options: Any) -> Any:
        for name in ("timeout", "backend", "pg_options", "device_id"):
            options.pop(name, None)
        return new_group(ranks, backend="fake", **options)

    return group


# Programs name the arguments as PyTorch does.
def _own_objects(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def _gathered_object(
    obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    if object_gather_list is not None:
        _own_objects(object_gather_list, obj)


def _scattered_object(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *_: Any,
    **__: Any,
) -> None:
    given = scatter_object_input_list
    if given:
        scatter_object_output_list[0] = given[dist.get_rank() % len(given)]


def _batch(p2p_op_list: list[Any]) -> list[Any]:
    """`batch_isend_irecv`: NCCL runs what is asked for in a batch at once, whatever its order."""
    Log.current.add("batch")
    handles = [t.op(t.tensor, t.peer, t.group, t.tag) for t in p2p_op_list]
    Log.current.add("batch_end")
    return handles
