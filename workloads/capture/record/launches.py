"""Things that a program starts by itself: its own kernels, extensions, processes, profilers."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile
from torch.utils import cpp_extension

from prestep.workloads.capture.record import host_arithmetic

EXTENSION = (
    "prestep capture: the program compiles an extension of its own, {name}, which does not run without a GPU. Give its "
    "functions as operators (torch.library.custom_op with register_fake): each is one kernel that moves its tensors, "
    "or takes what `prestep run --set 'costs.operators.mylib::op=12us'` says"
)
PROCESSES = (
    "prestep capture: the program starts {count} processes itself, while {world} ranks are captured on a host: "
    "capture it with --world {count}"
)
SEVERAL_GPUS = (
    "prestep capture: torch.nn.DataParallel runs {count} GPUs from one process, which is not recorded. Wrap the model "
    "in DistributedDataParallel, or capture the program on one GPU: --world 1"
)
SHARED = (
    "prestep capture: the program shares tensors of the GPU with processes that it starts itself, which are not "
    "recorded. Capture what one of these processes does"
)


class Refused(NotImplementedError):
    """What a recording cannot have: the program ends with this sentence, and without a traceback."""


#: What writes an operation down: its name, the tensors that it reads and writes.
Write = Callable[[str, list[torch.Tensor]], None]


def install(write: Write) -> None:
    for name in ("load", "load_inline"):
        setattr(cpp_extension, name, _loaded)
    for module in (torch.multiprocessing, torch.multiprocessing.spawn):
        module.start_processes = _run_here
    torch.multiprocessing.spawn = _run_here
    torch.Tensor.share_memory_ = _on_the_host(torch.Tensor.share_memory_)
    torch.jit.trace = functools.partial(_untraced, torch.jit.trace)
    torch.nn.DataParallel.__init__ = _on_one_gpu(torch.nn.DataParallel.__init__)
    if not hasattr(torch._C, "_scatter"):  # a build for CPUs
        torch._C._scatter = _to_the_one_gpu
    if importlib.util.find_spec("triton") is not None:
        _record_triton(write)


def _loaded(name: str, *_: Any, **__: Any) -> Any:
    """An extension that a program compiles: none, but those that compute on the host alone."""
    if name in host_arithmetic.EXTENSIONS:
        return host_arithmetic.stand_in(name)
    raise Refused(EXTENSION.format(name=name))


def _on_the_host(share: Any) -> Any:
    def shared(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cuda":
            raise Refused(SHARED)
        made: torch.Tensor = share(tensor)
        return made

    return shared


def _untraced(trace: Any, function: Any, *_: Any, **__: Any) -> Any:
    """What is traced asks for the same operations untraced; TensorBoard draws a graph of nothing.

    PyTorch's tracer makes sizes tensors, which are no sizes of tensors that stand in for others.
    """
    if sys._getframe(1).f_globals["__name__"].startswith("torch.utils.tensorboard"):
        return trace(torch.nn.Identity(), torch.zeros(1, device="cpu"))
    return function


def _run_here(
    function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any
) -> None:
    """The one of its processes that this rank is, in this process."""
    world = int(os.environ["LOCAL_WORLD_SIZE"])
    if nprocs != world:
        raise Refused(PROCESSES.format(count=nprocs, world=world))
    function(int(os.environ["LOCAL_RANK"]), *args)


def _on_one_gpu(make: Any) -> Any:
    @functools.wraps(make)
    def made(module: Any, *args: Any, **options: Any) -> None:
        make(module, *args, **options)
        if len(module.device_ids) > 1:
            count = len(module.device_ids)
            raise Refused(SEVERAL_GPUS.format(count=count))

    return made


def _to_the_one_gpu(
    tensor: torch.Tensor, devices: list[int], *_: Any
) -> list[torch.Tensor]:
    """What DataParallel does with a batch: one GPU gets all of it."""
    return [tensor.to(torch.device("cuda", devices[0]))]


def _record_triton(write: Write) -> None:
    """A kernel written in Triton, which the program has, is one operation; none is compiled, or tried out."""
    from triton.runtime import autotuner, jit

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        values = (*args, *options.values())
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        write(f"triton.triton_{kernel.fn.__name__}.default", tensors)

    def untried(tuner: Any, *args: Any, **options: Any) -> Any:
        return tuner.fn.run(*args, **options)

    jit.JITFunction.run = run
    autotuner.Autotuner.run = untried


def profile_the_host() -> None:
    _KinetoProfile.__init__ = _of_the_host(_KinetoProfile.__init__)
    torch.autograd.profiler.profile.__init__ = _without_device(
        torch.autograd.profiler.profile.__init__
    )


def _of_the_host(begin: Any) -> Any:
    def begun(self: Any, *, activities: Any = None, **options: Any) -> None:
        del activities
        options = {**options, "with_stack": False}
        begin(self, activities=[ProfilerActivity.CPU], **options)

    return begun


def _without_device(begin: Any) -> Any:
    def begun(self: Any, enabled: bool = True, **options: Any) -> None:
        silent = {"use_cuda": False, "use_device": None, "with_stack": False}
        begin(self, enabled, **{**options, **silent})

    return begun
