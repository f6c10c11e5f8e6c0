"""Pipeline parallelism: runs a schedule's operations on the stages of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.parallel.transfers import Transfers
from prestep.workloads.schedules.runtime import (
    Batch,
    Compute,
    Hook,
    Operation,
    Send,
    Wait,
    executed,
)
from prestep.workloads.sharding.ddp import DistributedDataParallel
from prestep.workloads.sharding.modules import ShardedModule
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Backward, Tape, Tensor
from prestep.workloads.torch.trainer import weighed
from prestep.workloads.torch.transformer import Transformer


@dataclass
class Stage:
    """One model stage of this rank and what is in flight through it."""

    index: int
    module: Transformer
    forward: Callable[[Tensor | tuple[int, int]], list[Tensor]]
    ddp: DistributedDataParallel | None = None
    sharded: ShardedModule | None = None
    backwards: int = 0  # whole backward passes done in this step
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    grads: dict[int, Tensor] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, list[Tensor]] = field(default_factory=dict)
    weights: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    retained: dict[int, list[Backward]] = field(default_factory=dict)


class Pipeline:
    """The stages of one pipeline rank.

    Parameters
    ----------
    groups : Groups
        Where the ranks lie, and which transfers meet.
    last : int
        The last stage of all.
    shape : tuple of int
        (micro batch, sequence, hidden) of the activation between stages.
    microbatches, runs : int
        Of one run of the schedule; runs in a step.
    loss : callable
        Of the last stage's output.
    """

    def __init__(
        self,
        t: Tape,
        stages: dict[int, Stage],
        groups: Groups,
        last: int,
        shape: tuple[int, int, int],
        microbatches: int,
        runs: int,
        loss: Callable[[Tensor], Tensor],
    ) -> None:
        self.t, self.stages, self.last, self.loss = t, stages, last, loss
        self.shape, self.microbatches = shape, microbatches
        by_pair = t.choices is not None and t.choices.since(2, 13)
        size = float(prod(shape) * t.itemsize)
        self.transfers = Transfers(t, groups, size, by_pair)
        self.last_backward = microbatches * runs
        for wrapped in (s.ddp for s in stages.values() if s.ddp is not None):
            wrapped.sync = False
        for module in (s.sharded for s in stages.values()):
            if module is not None and not module.reduces_itself:
                module.hold()
        self.sent: dict[int | str, list[Storage | None]] = {}
        self.buffers = self._receive_buffers()

    def _receive_buffers(self) -> list[Storage]:
        """Allocated once, one per microbatch and direction (stage.py, _prepare_*_infra)."""
        if self.last == 0:
            return []
        size, last = self.transfers.size * self.microbatches, self.last
        ends = [end for stage in self.stages for end in (0, last) if stage != end]
        return [Storage(self.t.memory, size, "buffers") for _ in ends]

    def run(self, operations: Sequence[Operation]) -> None:
        """Issues one run of the schedule."""
        for stage in self.stages.values():
            stage.kept.clear()
        for op in operations:
            if isinstance(op, Compute):
                self._compute(op)
            elif isinstance(op, Batch):
                self._post(op)
            elif isinstance(op, Wait):
                self.transfers.wait(op)
                self.sent.pop(op.handle, None)
            elif isinstance(op, Hook):
                self._hook(op)
        self.sent.clear()
        self._merge_outputs()
        self.transfers.run += 1

    def _hook(self, hook: Hook) -> None:
        """Gathers, frees or reduces a stage under FSDP2; DDP and FSDP1 act in backward passes."""
        module = self.stages[hook.stage].sharded
        if module is None or module.reduces_itself:
            return
        if hook.kind == "UNSHARD":
            self.t.phase = 0
            module.gather()
        elif hook.kind == "RESHARD":
            module.free()
        else:
            self.t.phase = 1
            module.reduce()

    def _compute(self, op: Compute) -> None:
        t, stage = self.t, self.stages[op.stage]
        if stage.sharded is not None:
            stage.sharded.gathered()
        t.microbatch = op.microbatch
        kind = executed(op.stage, op.kind)
        t.cpu("pp_action")
        if kind == "F":
            t.phase = 0
            self._forward(stage, op.microbatch)
        elif kind == "W":
            t.phase = 1
            self._averaged(stage, lambda: self._weights(stage, op.microbatch))
        elif kind == "B":
            t.phase = 1
            self._averaged(
                stage, lambda: self._backward(stage, op.microbatch, split=False)
            )
        elif kind:
            t.phase = 1
            self._backward(stage, op.microbatch, split=True)

    def _averaged(self, stage: Stage, run: Callable[[], None]) -> None:
        """The end of a backward pass; in the step's last one DDP reduces its buckets (stage.py, last_backward)."""
        stage.backwards += 1
        if stage.sharded is not None and stage.sharded.reduces_itself:
            run()
            stage.sharded.after_backward()
            return
        if stage.ddp is None:
            run()
            return
        stage.ddp.sync = stage.backwards == self.last_backward
        run()
        stage.ddp.after_backward()
        stage.ddp.sync = False

    def _weights(self, stage: Stage, mb: int) -> None:
        for launch in stage.weights.pop(mb):
            self.t.cpu("linear_weight_backward")
            launch()
        del stage.retained[mb]

    def _forward(self, stage: Stage, mb: int) -> None:
        t, (b, s, h) = self.t, self.shape
        x: Tensor | tuple[int, int]
        if stage.index == 0:
            x = (b, s)
        else:
            before = self.stages.get(stage.index - 1)
            received = Tensor(None, (b, s, h), t.itemsize)
            x = before.outputs[mb].view(b, s, h) if before else received
            x.node, x.requires_grad, x.name = None, True, "detached"
            stage.inputs[mb] = x
        if stage.ddp is not None:
            stage.ddp.before_forward()
        module = stage.sharded
        y = module.forward(lambda: stage.forward(x)) if module else stage.forward(x)
        stage.outputs[mb] = y[0]
        if stage.module.last:
            stage.kept[mb] = [Tensor(o.storage, o.shape, o.itemsize) for o in y]
            stage.losses[mb] = weighed(t, y, self.loss)

    def _backward(self, stage: Stage, mb: int, split: bool) -> None:
        """The backward pass of a microbatch; `split`: gradients of weights are put off."""
        t = self.t
        if split:
            t.deferred = []
        t.cpu("backward_call")
        self._autograd(stage, mb)
        x = stage.inputs.pop(mb, None)
        if x is not None and x.grad is not None:
            stage.grads[mb], x.grad = x.grad, None
        if split:
            stage.weights[mb], stage.retained[mb] = t.deferred or [], t.retained
            t.deferred, t.retained = None, []

    def _autograd(self, stage: Stage, mb: int) -> None:
        """Runs autograd from the loss, or from the output with the gradient that the stage after has sent."""
        t = self.t
        loss = stage.losses.pop(mb, None)
        output = stage.outputs.pop(mb)
        if loss is not None:
            del output
            t.backward(loss, aten.ones_like(t, loss))
            return
        after = self.stages.get(stage.index + 1)
        received = Tensor(None, self.shape, t.itemsize)
        grad = after.grads.pop(mb) if after else received
        t.backward(output, grad)

    def _post(self, batch: Batch) -> None:
        """Issues the sends and receives of a batch.

        What is sent lives until its handle is waited for, and as long as the schedule's list of its last sends, which
        the next ones of that direction take the place of (schedules.py: ``bwd_sends``).
        """
        self.transfers.post(batch)
        for op in batch.ops:
            if isinstance(op, Send):
                tensors = [self._sent(op).storage]
                self.sent[op.what] = tensors
                self.sent.setdefault(batch.handle, []).extend(tensors)

    def _sent(self, op: Send) -> Tensor:
        """What a stage sends: an output, which it keeps for backward, or a gradient, which it needs no more."""
        stage = self.stages[op.stage]
        if op.what == "F":
            return stage.outputs[op.microbatch]
        return stage.grads.pop(op.microbatch)

    def _merge_outputs(self) -> None:
        """The last stage concatenates the outputs of all microbatches (schedules.py, _merge_outputs)."""
        self.t.phase = 0
        for stage in self.stages.values():
            for outputs in zip(*stage.kept.values(), strict=True):
                first, *others = outputs[0].shape
                shape = len(outputs) * first, *others
                aten.joined(self.t, outputs, shape, 0)


def layers_of_stages(layers: int, stages: int) -> list[range]:
    """Blocks of each stage: the first ``layers % stages`` stages hold one more."""
    base, extra = divmod(layers, stages)
    cuts = [0]
    for i in range(stages):
        cuts.append(cuts[-1] + base + (1 if i < extra else 0))
    return [range(a, b) for a, b in pairwise(cuts)]
