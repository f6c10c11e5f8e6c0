"""The optimizer's part of a step: its state, and the kernels and host operations of its update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from prestep.sim.extras import lazily
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.memory.account import Storage, storages
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators import foreach
from prestep.workloads.optimizer import Optimizer
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch import trainer
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

with lazily():
    from prestep.workloads import orthogonal
    from prestep.workloads.sharding import host as host_memory
    from prestep.workloads.torch import amp, updates

ADAMW_MOMENTS = 2
FUSED_ADAM = (
    *(("amsgrad", False), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8)),
    *(("lr", 1e-3), ("maximize", False)),
)


@dataclass(frozen=True)
class OptimizerStep:
    """The optimizer of one rank.

    Attributes
    ----------
    tape : Tape
    rule : Optimizer
        How parameters are updated.
    choices : PyTorch
        The trainer's.
    sharded : bool
        Parameters are DTensors, whose host operations cost more.
    shards : Group, optional
        Ranks that each keep a part of every matrix (FSDP).
    tensor : Group, optional
        Tensor-parallel ranks, which split most of them.
    scaler : LossScaler, optional
        Of 16-bit floats with a short exponent.
    host : HostMemory, optional
        Where parameters and the optimizer's state are; None: on the GPU.
    parts : tuple of Group
        Ranks that each have a part of the gradients, an axis each.
    """

    tape: Tape
    rule: Optimizer
    choices: PyTorch
    sharded: bool
    scaler: amp.LossScaler | None = None
    shards: Group | None = None
    tensor: Group | None = None
    host: host_memory.HostMemory | None = None
    parts: tuple[Group, ...] = ()

    @property
    def wide(self) -> int:
        """Bytes of a stored parameter."""
        return 4 if self.choices.master_weights else self.tape.itemsize

    @property
    def moment(self) -> int:
        """Bytes of a moment of a parameter's element."""
        return 4 if self.choices.wide_moments else self.wide

    def state(self, stored: Sequence[Tensor]) -> list[Storage]:
        """Memory of the moments of the stored parameters."""
        memory = self.tape.memory
        if self.host is not None:
            elements = sum(p.elements for p in stored)
            each = self.rule.bytes_of_moment(elements, self.moment)
            self.tape.memory.keep_on_host("optimizer", self.rule.moments * each)
            return []
        if self.rule.update == "adafactor":
            sizes = [updates.adafactor_state(p, self.wide) for p in stored]
            return storages(memory, sizes, "optimizer")
        sizes = [
            self.rule.bytes_of_moment(p.elements, self.moment)
            for p in stored
            for _ in range(self._moments(p))
        ]
        return storages(memory, sizes, "optimizer")

    def _moments(self, p: Tensor) -> int:
        """Values of optimizer state for each element of a parameter."""
        by_rule = not self.rule.iterations or _matrices(p)
        return self.rule.moments if by_rule else ADAMW_MOMENTS

    def update(self, stored: Sequence[Tensor]) -> None:
        """Clips gradients if asked for, and updates the stored parameters."""
        if self.host is not None:
            self._update_on(self.host, stored)
            return
        if self.scaler is not None:
            self.scaler.unscale(self.tape, stored, self.wide)
            self._wait_for_finite()
        if self.choices.clip_gradients:
            trainer.clip(self.tape, stored, self.wide, self.parts)
        iterations = self.rule.iterations
        matrices = [p for p in stored if iterations and _matrices(p)]
        rest = [p for p in stored if not (iterations and _matrices(p))]
        self._elementwise(rest)
        if matrices:
            orthogonal.update(
                self.tape,
                filter(None, map(_matrices, matrices)),
                iterations,
                self.wide,
                self.shards,
                self.tensor,
            )

    def _update_on(
        self, host: host_memory.HostMemory, stored: Sequence[Tensor]
    ) -> None:
        """The same by the CPU."""
        if self.choices.clip_gradients:
            self.tape.cpu("elementwise_nograd", len(stored))
            host.clip(stored)
        self.cpu("optimizer_step")
        self.cpu("optimizer_param", len(stored))
        host.update(stored, self.rule, self.moment, self.choices.fused_optimizer)

    def _elementwise(self, stored: Sequence[Tensor]) -> None:
        """Updates the parameters that are not made orthogonal."""
        update = self.rule.update
        if update == "sgd":
            self._sgd(stored)
            return
        if update in ("adam", "orthogonal"):
            self._adam(stored)
            return
        self.cpu("optimizer_step")
        self.cpu("optimizer_param", len(stored))
        if update == "lion":
            fused = self.choices.fused_optimizer
            updates.lion(self.tape, stored, self.wide, self.moment, fused)
        elif update == "adafactor":
            updates.adafactor(self.tape, stored, self.wide)
        else:
            updates.quantized(self.tape, stored, self.rule, self.wide, self.moment)

    def _wait_for_finite(self) -> None:
        """The host reads whether gradients are finite, unless the optimizer's kernel does (fused Adam)."""
        if self.rule.update != "adam" or not self.choices.fused_optimizer:
            self.tape.synchronize()

    def cpu(self, operation: str, count: float = 1.0) -> None:
        """A host operation, which costs more for DTensors."""
        self.tape.cpu(operation + ("_dtensor" if self.sharded else ""), count)

    def _sgd(self, stored: Sequence[Tensor]) -> None:
        """SGD over lists of tensors, with momentum or without it."""
        self.cpu("optimizer_step")
        self.cpu("optimizer_param", len(stored))
        moment, fused = self.moment * self.rule.moments, self.choices.fused_optimizer
        updates.sgd(self.tape, stored, self.wide, moment, fused)

    def _adam(self, stored: Sequence[Tensor]) -> None:
        """One fused kernel, or eight over lists, or eight for each tensor."""
        t = self.tape
        self.cpu("optimizer_step")
        if self.choices.fused_optimizer:
            self._fused_adam(stored)
        else:
            self.cpu("optimizer_param", len(stored))
            together = self.choices.foreach_optimizer
            sizes = self.wide, self.moment
            updates.adam(t, stored, *sizes, together, self.rule.decays)

    def _fused_adam(self, stored: Sequence[Tensor]) -> None:
        """Step counters of all tensors, then all tensors: one operation each, by as many launches as they need."""
        t = self.tape
        counters = (Operand("fp32", ()),) * len(stored)
        count = Operation("aten._foreach_add_.Scalar", (counters, 1))
        if not self.sharded:
            self.cpu("optimizer_param", len(stored))
        t.operate(count, foreach.lists)
        if self.sharded:  # lists of DTensors are unwrapped as the update is called
            self.cpu("optimizer_param", len(stored))
        tables = self._operands(p for p in stored if p.name == "embedding")
        rule = partial(foreach.adamw, tables=tables)
        t.operate(self._adam_of(stored), rule)

    def _adam_of(self, tensors: Sequence[Tensor]) -> Operation:
        """The fused Adam of these: parameters, gradients, both moments, no largest ones, and counters."""
        wide = self._operands(tensors)
        moment = tuple(replace(each, dtype=DTYPES[self.moment]) for each in wide)
        counters = (Operand("fp32", ()),) * len(tensors)
        arguments = wide, wide, moment, moment, (), counters
        name, decay = ("adamw", 0.01) if self.rule.decays else ("adam", 0.0)
        options = *FUSED_ADAM, ("weight_decay", decay)
        return Operation(f"aten._fused_{name}_.default", arguments, options)

    def _operands(self, tensors: Iterable[Tensor]) -> tuple[Operand, ...]:
        """Parameters as they are stored."""
        stored = DTYPES[self.wide]
        return tuple(Operand(stored, p.shape, p.strides) for p in tensors)


def _matrices(p: Tensor) -> orthogonal.Matrices | None:
    return orthogonal.hidden(p.name, p.whole or p.shape)
