"""Compiled functions: which operations a call of one runs, and which the autograd nodes that the call made.

`torch.compile` compiles nothing here. Its functions run as they are written, inside a region that is written down with
the storages that each operation reads and writes: enough to tell later what a compiler joins.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch._dynamo.eval_frame import DisableContext

from prestep.workloads.capture.record.cuts import Cuts
from prestep.workloads.capture.record.storages import Storages
from prestep.workloads.capture.record.streams import Log
from prestep.workloads.capture.record.values import tensors_in

KEY = "prestep region"  # in the metadata of autograd nodes
#: Functions that Dynamo traces though it is kept away from them, or does not meet: what a compiled function saves is
#: packed when it has run.
TRACED = ("checkpoint", "pack_hook", "__torch_dispatch__")
#: Whose functions autograd calls before and after nodes of what is compiled: FSDP's.
HOOKS = "torch.distributed"
Place = tuple[int, bool]  # number of a region, whether in its backward


class Regions:
    """Where the program is now: in which call of a compiled function, or in whose backward.

    Attributes
    ----------
    calling
        Number of the call that runs; None outside of any.
    paused
        Whether a function runs in it that the compiler is kept away from.
    apart
        Numbers of autograd nodes that such functions made, in a call: FSDP's hooks have one.
    cuts, graphs
        Where the function is cut, and the first node of each of its graphs so far, with the region that it is.
    written
        The region that the recording is in: it changes with the next operation.
    """

    numbers: ClassVar[Iterator[int]] = itertools.count(1)
    calling: ClassVar[int | None] = None
    apart: ClassVar[list[range]] = []
    cuts: ClassVar[Cuts | None] = None
    graphs: ClassVar[list[tuple[int, int]]] = []
    paused: ClassVar[bool] = False
    written: ClassVar[Place | None] = None

    @classmethod
    def enter(cls, reads: Sequence[torch.Tensor] = ()) -> None:
        """Before an operation on some tensors: opens or closes the region that it belongs to."""
        if cls.cuts is not None and not cls.paused and cls.cuts.starts(reads):
            cls.calling = next(cls.numbers)
            # The operation's own node is there.
            cls.graphs.append((torch._C._autograd._get_sequence_nr() - 1, cls.calling))
        place = cls._place()
        if place == cls.written:
            return
        if cls.written is not None:
            Log.current.add("region_end", cls.written[0], [])
        if place is not None:
            Log.current.add("region", place[0], int(place[1]))
        cls.written = place

    @classmethod
    def _place(cls) -> Place | None:
        if cls.calling is not None:
            return cls.calling, False
        node = torch._C._current_autograd_node()
        number = None if node is None else node.metadata.get(KEY)
        return None if number is None else (number, True)

    @classmethod
    def inside(cls) -> bool:
        """Whether what runs now is compiled."""
        return cls._place() is not None and not cls.paused

    @classmethod
    @contextmanager
    def call(cls, cuts: Cuts) -> Iterator[None]:
        """A call of a compiled function, which is the outermost one.

        Programs that ask are told that they are compiled: transformers makes masks there that it leaves out otherwise.
        """
        cls.calling, cls.cuts = next(cls.numbers), cuts
        cls.graphs = [(torch._C._autograd._get_sequence_nr(), cls.calling)]
        cuts.begin()
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            cuts.end()
            cls.calling = cls.cuts = None
            torch.compiler._is_compiling_flag = False

    @classmethod
    @contextmanager
    def pause(cls) -> Iterator[None]:
        """A function in a compiled one that runs as it is written: its operations break what is compiled."""
        before = cls.paused, torch.compiler._is_compiling_flag
        cls.paused, torch.compiler._is_compiling_flag = True, False
        first = torch._C._autograd._get_sequence_nr()
        try:
            yield
        finally:
            cls.apart.append(range(first, torch._C._autograd._get_sequence_nr()))
            cls.paused, torch.compiler._is_compiling_flag = before

    @classmethod
    def leave(cls, storages: list[int]) -> None:
        """After a call: its results are what has to be in memory."""
        if cls.written is not None and not cls.written[1]:
            Log.current.add("region_end", cls.written[0], storages)
            cls.written = None


def compiled(function: Callable[..., Any], see: Callable[[Any], int], name: str) -> Any:
    """A function whose calls are regions; ``see`` gives the number of a tensor's storage."""

    cuts = Cuts(see)

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        Log.compiled.add(name)
        if Regions.calling is not None:
            return function(*arguments, **options)
        with Regions.call(cuts):
            results = function(*arguments, **options)
        tensors = [tensor for tensor in tensors_in(results) if tensor.is_cuda]
        _claim(tensors, Regions.graphs)
        Regions.apart.clear()
        Regions.leave([see(part) for tensor in tensors for part in parts(tensor)])
        return results

    return called


def _disabled(disable: Any) -> Any:
    """`torch._dynamo.disable`, whose functions are no part of the compiled ones that call them."""

    def disabled(self: Any, function: Any) -> Any:
        made = disable(self, function)
        plain = isinstance(function, FunctionType)
        if not plain or function.__name__ in TRACED:
            return made

        @functools.wraps(made)
        def called(*arguments: Any, **options: Any) -> Any:
            hook = function.__module__.startswith(HOOKS) and Regions._place()
            if Regions.calling is None and not hook:
                return made(*arguments, **options)
            with Regions.pause():
                return made(*arguments, **options)

        return called

    return disabled


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that one is made of, such as the part of a DTensor that is here."""
    if not torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()  # since PyTorch 2.13 also a mesh's
    inner = [getattr(tensor, name) for name in names]
    return [p for each in inner if isinstance(each, torch.Tensor) for p in parts(each)]


def _claim(results: list[torch.Tensor], graphs: Sequence[tuple[int, int]]) -> None:
    """The autograd nodes behind ``results`` belong to the last graph that is no younger, if there is one."""
    pending = [tensor.grad_fn for tensor in results]
    while pending:
        node = pending.pop()
        if node is None or KEY in node.metadata or not _made_since(node, graphs[0][0]):
            continue
        if not any(node._sequence_nr() in each for each in Regions.apart):
            at = bisect_right(graphs, (node._sequence_nr(), math.inf))
            node.metadata[KEY] = graphs[at - 1][1]
        pending += [source for source, _ in node.next_functions]


def _made_since(node: Any, first: int) -> bool:
    """Nodes are numbered as they are made; those that accumulate gradients of weights belong to nobody."""
    return "AccumulateGrad" not in node.name() and node._sequence_nr() >= first


def _name_of(model: Any) -> str:
    """Of a function, or of the class of a module; `module.compile()` compiles the method that calls it."""
    owner = getattr(model, "__self__", model)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    return getattr(model, "__qualname__", type(model).__name__)


def install(storages: Storages) -> None:
    """`torch.compile` marks regions from now on."""

    def compile_(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile_
        name = _name_of(model)
        if isinstance(model, torch.nn.Module):
            # The module stays what it is: a wrapper would rename its parameters.
            model._compiled_call_impl = compiled(model._call_impl, storages.see, name)
            return model
        return compiled(model, storages.see, name) if callable(model) else model

    torch.compile = compile_
    DisableContext.__call__ = _disabled(DisableContext.__call__)
    Log.arrive = staticmethod(Regions.enter)
