"""Every operation of the program passes here: what touches the device is written down and done to fake tensors."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import TorchDispatchMode

from prestep.workloads.capture.record import (
    collectives,
    composites,
    describe,
    gradient_sums,
    host_arithmetic,
    memo,
    reads,
    sizes,
    sparse,
    values,
)
from prestep.workloads.capture.record.checkpointing import Checkpointing
from prestep.workloads.capture.record.exchange import Exchange
from prestep.workloads.capture.record.regions import Regions
from prestep.workloads.capture.record.stand_in import INSIDE, inward
from prestep.workloads.capture.record.storages import Storages
from prestep.workloads.capture.record.streams import Log, Streams

aten = torch.ops.aten
COMMUNICATION = ("c10d", *collectives.FUNCTIONAL)
MAKERS = (
    aten.empty.memory_format,
    aten.zeros.default,
    aten.ones.default,
    aten.randn.default,
)
DETACH = aten.detach.default
#: Functional collectives that work in place on a copy (csrc/distributed/c10d/Functional.cpp).
ON_A_COPY = (
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.broadcast.default,
)
#: What autograd calls on zeros of its own where a mode like this one looks on, and what it calls on them, in place,
#: where none does (autograd/FunctionsManual.cpp, areAnyTensorSubclassLike); the nodes that do so.
IN_PLACE = {
    aten.index_put.default: aten._index_put_impl_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
}
PUTTING = ("IndexBackward0", "GatherBackward0", "TopkBackward0", "SortBackward0")
#: Elements of a tensor on the host from which on it is fake: models are built there, too.
LARGE = 1 << 20
IMAGINED = torch._C._TorchDispatchModeKey.FAKE
#: Tensors that stand for others: a part on every rank, the result of a communication, rows of several lengths.
WRAPPERS = (DTensor, AsyncCollectiveTensor, NestedTensor)


@functools.cache
def _is_composite(function: Any) -> bool:
    """Whether autograd takes an operator apart into others, and the device has no kernel of its own for it."""
    # In C++, decompositions left out.
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = function.name()
    return bool(has(name, "CompositeImplicitAutograd") and not has(name, "PrivateUse1"))


def direction() -> int:
    """0 forward, 1 backward, 2 forward again within backward, as checkpointed layers are computed.

    What is computed again keeps a graph of its own, which backward does not, unless the program differentiates twice.
    """
    if torch._C._current_autograd_node() is None:
        return 0
    return 2 if torch.is_grad_enabled() and not Log.current.twice else 1


def as_alone(function: Any, args: Any) -> tuple[Any, Any]:
    """The call that autograd makes where nobody looks on, and its arguments."""
    if function is gradient_sums.SUM:
        sums = direction() == 1 and Regions.written is None
        own = sums and gradient_sums.in_place(args)
        return (aten.add_.Tensor if own else function), args
    if function not in IN_PLACE or direction() != 1:
        return function, args
    if torch._C._current_autograd_node().name() not in PUTTING:
        return function, args
    unsafe = function is aten.index_put.default
    return IN_PLACE[function], (*args, True) if unsafe else args


class Recorder(TorchDispatchMode):
    """Runs operations on fake tensors and writes them down.

    Attributes
    ----------
    table
        Number of each distinct operation, by its description as JSON.
    assumed
        How often a value was asked for that nobody knows, by what asked.
    checkpointing
        Whose the calls are that are counted.
    counter
        Profiles the program while its calls are counted; every thread with operations takes it up, as backward's.
    wrote
        Is told of operations outside of backward that may write to weights, once there are gradients.
    """

    def __init__(self, fake: FakeTensorMode, exchange: Exchange) -> None:
        super().__init__()
        self.fake = fake
        gradient_sums.holders_of_one()  # counted while nobody looks on
        self.storages = Storages()
        self.works = collectives.Works(exchange)
        self.table: dict[str, int] = {}
        self.assumed: Counter[str] = Counter()
        self.counter: Any = None
        self.wrote: Any = None
        self.checkpointing = Checkpointing()
        self.memo = memo.Memo(fake)
        self.reads = reads.Reads(self.assumed, self._write)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled, so nothing has to keep the compiler away from here."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if function is torch.ops.prim.device.default:
            return self._device_of(args[0])
        if any(k is not FakeTensor and issubclass(k, WRAPPERS) for k in types):
            eager = Regions.written is None  # compiled code calls local operations
            if eager and any(issubclass(each, DTensor) for each in types):
                Log.current.notice("dtensor", direction())
            # Its own rules say which operations that is on this rank's part; those come back here.
            return NotImplemented
        if torch._C._get_dispatch_mode(IMAGINED) is not None:
            # PyTorch asks what shapes a result would have, as distributed tensors do once for an operation.
            return function(*args, **options)
        if options.get("device") is not None:
            options["device"] = inward(options["device"])
        options.pop("pin_memory", None)
        function, args = as_alone(function, args)
        if function is aten.is_pinned.default:
            return True  # memory of the host counts as pinned
        if _is_composite(function):
            # Asked below autograd, where nothing took it apart: by tensors that stand for others.
            compose = composites.RULES.get(function, function.decompose)
            with self:
                return compose(*args, **options)
        if self.counter is None:
            return self._handle(function, args, options)
        sys.setprofile(None)
        try:
            return self._handle(function, args, options)
        finally:
            sys.setprofile(self.counter)

    def _device_of(self, tensor: Any) -> torch.device:
        """Asked by C++, which has to know the device inside."""
        inside: torch.device = tensor.fake_device
        return torch.device("meta") if self.fake.in_kernel_invocation else inside

    def _handle(self, function: Any, args: Any, options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            call = memo.call_of(function, args, options)
            entry = self.memo.find(call)
            if call is not None and entry is not None:
                return self._repeat(entry, call, function, args, options)
        return self._handle_new(call, function, args, options)

    def _repeat(
        self, entry: memo.Entry, call: memo.Call, function: Any, args: Any, options: Any
    ) -> Any:
        """An operation that was done before to tensors of the same shapes."""
        results = self.memo.results(entry, call.tensors)
        self._see(results)
        if entry.valued:
            values.compute(function, args, options, results)
        else:
            values.forget(call.tensors[place] for place in entry.written)
        self._write(function, args, options, results, entry)
        return results

    def _handle_new(
        self, call: memo.Call | None, function: Any, args: Any, options: Any
    ) -> Any:
        tensors = values.tensors_in((args, options))
        on_device = options.get("device") == INSIDE or any(
            t.device.type == "cuda" for t in tensors
        )
        if function.namespace in COMMUNICATION:
            return self._communicate(function, args, options)
        if not on_device and not any(isinstance(t, FakeTensor) for t in tensors):
            return self._on_host(function, args, options)
        if not on_device and function in reads.NUMBERS:
            return self.reads.answer(function, args)
        if not on_device:
            results = self._fake(function, args, options)
            host_arithmetic.write(function, args, options, results)
            return results
        return self._on_device(call, function, args, options)

    def _on_host(self, function: Any, args: Any, options: Any) -> Any:
        """Real, but for tensors so large that they can only be weights or data; those on "meta" cost nothing anyway."""
        shape = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        count = prod(size for size in shape if isinstance(size, int))
        empty = str(options.get("device")) == "meta"
        if count >= LARGE and function in MAKERS and not empty:
            return self._fake(function, args, options)
        results = function(*args, **options)
        host_arithmetic.write(function, args, options, results)
        return results

    def _fake(self, function: Any, args: Any, options: Any) -> Any:
        function, args = sizes.with_numbers(function, args)
        with self.fake:
            try:
                return function(*args, **options)
            except TypeError:  # a fake mode takes no classes that it does not know
                if not any(map(values.is_labelled, values.tensors_in((args, options)))):
                    raise
                args, options = torch.utils._pytree.tree_map(
                    values.plain, (args, options)
                )
                return function(*args, **options)

    def _on_device(
        self, call: memo.Call | None, function: Any, args: Any, options: Any
    ) -> Any:
        if function in reads.NUMBERS:
            return self.reads.number(function, args)
        if reads.to_host(function, args, options):
            return self.reads.copied(function, args, options)
        entry = None
        try:
            results = self._fake(function, args, options)
        except RuntimeError as unknown:
            results, assumption = sizes.results(
                self.fake, function, args, options, unknown
            )
            if assumption:
                self.assumed[assumption] += 1
        else:
            with torch._C.DisableTorchFunction():
                entry = self.memo.keep(call, function, args, options, results)
        results = self._sparse(function, args, options, results)
        self._see(results)
        values.compute(function, args, options, results)
        self._write(function, args, options, results, entry)
        return results

    def _sparse(self, function: Any, args: Any, options: Any, results: Any) -> Any:
        """Results of which the sparse ones have entries."""
        if not any(map(sparse.is_sparse, values.tensors_in(results))):
            return results
        operands = values.tensors_in((args, options))

        def made(result: Any) -> Any:
            return sparse.with_entries(
                self.fake, function, operands, result, self.assumed
            )

        return torch.utils._pytree.tree_map(made, results)

    def _see(self, results: Any) -> None:
        for tensor in torch.utils._pytree.tree_leaves(results):
            if isinstance(tensor, FakeTensor) and tensor.fake_device == INSIDE:
                self.storages.see(tensor)

    def _write(
        self,
        function: Any,
        args: Any,
        options: Any,
        results: Any,
        entry: memo.Entry | None,
    ) -> None:
        log = Log.current
        backward = direction()
        log.backward = log.backward or backward > 0
        if self.wrote is not None and log.backward and not backward:
            self.wrote(function, args, options)
        hooked = self.checkpointing.inside or self.checkpointing.handed_out
        self.checkpointing.handed_out = False
        if not log.open or (function is DETACH and hooked):
            return  # a hook that detaches a tensor has a price for all that it does
        number = None if entry is None else entry.number
        # Indices that are known count, and calls of one key may have others.
        by_value = function._schema.name.partition("::")[2] in describe.PUTS
        if number is None or by_value:
            number = self._number(function, args, options, results)
            if entry is not None:
                entry.number = number
        Regions.enter(values.tensors_in((args, options)))
        done = (Streams.now.number, number, backward)
        if Regions.written is None or Regions.paused:
            log.add("operate", *done)
        else:
            log.add("operate_compiled", *done, *self._places(args, options, results))
        if sizes.may_wait(function) and sizes.host_waits(function, args, options):
            log.add("read", Streams.now.number, function._schema.name)

    def launch(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Writes down a kernel of the program's own."""
        row = [name, [describe.argument(tensor) for tensor in tensors], {}, []]
        text = json.dumps(row, separators=(",", ":"))
        number = self.table.setdefault(text, len(self.table))
        values.forget(tensors)
        Log.current.add("operate", Streams.now.number, number, direction())

    def _number(self, function: Any, args: Any, options: Any, results: Any) -> int:
        """Of an operation in the table."""
        described = describe.call(function, args, options, results)
        text = json.dumps(described, separators=(",", ":"))
        return self.table.setdefault(text, len(self.table))

    def _places(self, args: Any, options: Any, results: Any) -> list[list[list[int]]]:
        """Where the tensors lie that an operation reads and those that it returns, in the order of its description."""
        operands = values.tensors_in((args, dict(sorted(options.items()))))
        return [
            [self.storages.place(tensor) for tensor in tensors]
            for tensors in (operands, values.tensors_in(results))
        ]

    def _communicate(self, function: Any, args: Any, options: Any) -> Any:
        compiled = Regions.inside()

        def run() -> Any:
            if function in ON_A_COPY and not compiled:
                with self:
                    copied = torch.contiguous_format
                    return aten.clone(args[0], memory_format=copied)
            if (
                function in ON_A_COPY
            ):  # a compiler exchanges what nobody reads again in its place
                results = self._fake(aten.alias.default, args[:1], {})
            else:
                results = self._fake(function, args, options)
            if compiled and function._schema.name.split("::")[1] in collectives.KINDS:
                # What makes the operand is needed, and readers of the result depend on it.
                self._write(function, args, options, results, None)
            return results

        see = self.storages.see
        return collectives.record(function, args, run, self.works, see, compiled)
