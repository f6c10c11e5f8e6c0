"""One pipeline rank of a Megatron run: microbatches along the schedule, then gradients, then the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.optimizer import reduce_tied, resident
from prestep.workloads.megatron.passes import NOTHING, Pass
from prestep.workloads.megatron.pipeline import alignment_of
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.megatron.schedule import StageTransfers
from prestep.workloads.megatron.units import Unit
from prestep.workloads.memory.account import Storage
from prestep.workloads.schedules.runtime import Batch, Compute, Operation, Pair, Wait

HEAD = "head"


@dataclass
class DeferredHead:
    """The products of the head that a rank has put off in this step.

    Attributes
    ----------
    rank
        The pipeline rank.
    kept
        What each product that was put off keeps in memory.
    """

    rank: StageStep
    kept: list[Storage] = field(default_factory=list)

    @property
    def stage(self) -> int:
        """The stage that has the head."""
        return len(self.rank.owner) - 1

    @property
    def used(self) -> bool:
        """Whether this rank puts off any."""
        asked = self.rank.o.defer_embedding_wgrad_compute
        return asked and self.rank.grid.pp > 1 and self.stage in self.rank.stages

    def takes(self, stage: int) -> bool:
        """Whether a stage's next backward pass leaves its product: the first ones of a step do, up to the limit."""
        limit = self.rank.o.wgrad_deferral_limit
        full = limit > 0 and len(self.kept) >= limit
        return self.used and stage == self.stage and not full

    def backward(self, unit: Unit) -> Pass:
        """A unit's backward pass, of the head without the product of its weights' gradient."""
        return unit.halves.input if unit.name == HEAD else unit.backward

    def keep(self) -> None:
        """One more product is put off."""
        parts = self.rank.parts(self.stage)
        size = sum(
            times * unit.halves.held for unit, times in parts if unit.name == HEAD
        )
        self.kept.append(Storage(self.rank.tape.memory, size, "activations"))

    def compute(self) -> None:
        """All of them, one after the other; with the last one the stage's gradients are complete."""
        rank = self.rank
        rank.tape.phase = 1
        for _ in self.kept[1:]:
            for unit, times in rank.parts(self.stage):
                rank.emit(self._products(unit), times)
        self.kept.clear()
        rank.back(self.stage, self._products)

    def _products(self, unit: Unit) -> Pass:
        """The product that was put off, of the head; of other units nothing."""
        return unit.halves.weights if unit.name == HEAD else NOTHING


PAIRED = ("layer", "further")  # units with tokens that travel
Part = tuple[Unit, int]  # a unit, and how often it runs


class StageStep(Rank):
    """Records the step of one pipeline rank."""

    def record(self, operations: Sequence[Operation], runs: int) -> None:
        """One step in steady state."""
        t, engine = self.tape, self.engine
        self.transfers = StageTransfers(self, engine.pipelines, engine.unpacked)
        self.stashed: dict[tuple[int, int], list[Storage]] = {}
        self.put_off: dict[tuple[int, int], Storage] = {}
        self.cast: set[int] = set()
        self.deferred = DeferredHead(self)
        self.held = resident(self, self.engine.state_types(self.s))
        t.memory.reset_peak()
        t.cpu("step_python")
        if "full_iteration" in self.o.cuda_graph_scope:
            t.cpu("graph_launch")
        self.alignment = alignment_of(operations, self.stage)
        self.data.begin()
        passes = _gradient_passes(operations)
        self.remaining = {stage: runs * passes[stage] for stage in self.stages}
        if self.deferred.used:
            # The head's products come behind the last backward pass.
            self.remaining[self.deferred.stage] += 1
        for run in range(runs):
            self.transfers.run = run
            self._play(operations)
            if self.s.pytorch.timed_rounds:
                t.synchronize()
        if self.deferred.used:
            self.deferred.compute()
        t.phase, t.layer = 1, -1
        self.data.finish()
        reduce_tied(self)
        self.engine.optimize(self)

    def _play(self, operations: Sequence[Operation]) -> None:
        """The schedule once."""
        for op in operations:
            if isinstance(op, Compute) and op.kind == "B":
                # Forward passes before have no partner (Megatron-core, combined_1f1b.py); backward passes behind the
                # last forward pass have products of weights' gradients, which are put off.
                self.accompanied = self.o.overlap_moe_expert_parallel_comm
            if isinstance(op, Compute):
                self._compute(op)
                if self._ends_round(op):
                    self.tape.synchronize()
            elif isinstance(op, Pair):
                self._pair(op)
            elif isinstance(op, Batch):
                self.transfers.post(op)
            elif isinstance(op, Wait):
                self.transfers.wait(op)
        self.accompanied = False

    def _ends_round(self, op: Compute) -> bool:
        """Whether a timer waits behind a pass: without stages every backward pass ends a round."""
        alone = self.grid.pp == 1
        return self.s.pytorch.timed_rounds and alone and op.kind in "BW"

    def _compute(self, op: Compute) -> None:
        self.tape.microbatch = op.microbatch
        run = {
            "F": self._forward,
            "B": self._backward,
            "I": self._input_gradient,
            "W": self._weight_gradient,
        }
        run[op.kind](op.stage, op.microbatch)

    def _activations(self, size: float) -> Storage:
        """Memory of activations that is held as long as this value."""
        return Storage(self.tape.memory, size, "activations")

    def _keep(self, parts: Iterable[Part]) -> list[Storage]:
        """What forward passes keep, each module's in one."""
        stash = []
        for unit, times in parts:
            for module, size in unit.kept.items():
                with self.tape.within(f"{unit.name}.{module}"):
                    stash.append(self._activations(size * times))
        return stash

    def _forward(self, stage: int, microbatch: int) -> None:
        self.tape.phase = 0
        self.tape.cpu("pp_action")
        if stage > 0:
            self.transfers.gather()
        self.data.before(stage)
        self._cast_weights(stage)
        self.data.forward(stage)
        self.stashed[stage, microbatch] = self._keep(self.parts(stage))

    def _cast_weights(self, stage: int) -> None:
        """In a step's first forward pass of a stage its weights are cast, and kept so for the others."""
        parts = [] if stage in self.cast else self.parts(stage)
        self.cast.add(stage)
        for unit, times in parts:
            if unit.casts:
                moved = times * unit.casts
                pass_over(self.tape, sum(unit.parameters.values()) * times, moved)

    def _pair(self, pair: Pair) -> None:
        """A forward and a backward pass whose tokens travel beside the other's computation, layer by layer."""
        f, b = pair.forward, pair.backward
        if self._overlaps(f, b):
            self._at_once(f, b)
        else:
            self._compute(f)
            self._compute(b)

    def _at_once(self, f: Compute, b: Compute) -> None:
        """Both passes in one."""
        t = self.tape
        self.remaining[b.stage] -= 1
        t.phase, t.microbatch = 1, f.microbatch
        self.data.before(f.stage)
        self._cast_weights(f.stage)
        t.microbatch = b.microbatch
        t.cpu("pp_action")
        t.cpu("backward_call")
        ahead = list(self.parts(f.stage, aside=True))
        back = list(self.parts(b.stage, aside=True))
        self.stashed[f.stage, f.microbatch] = self._keep(ahead)
        transient = self._activations(self._transient(b.stage))
        self._interleave(ahead, back[::-1])
        self.data.after(b.stage)
        del transient, self.stashed[b.stage, b.microbatch]

    def _overlaps(self, forward: Compute, backward: Compute) -> bool:
        """Whether tokens of either pass travel beside the other: in whole backward passes that reduce nothing."""
        reduces = self.remaining[backward.stage] == 1 and self.o.overlap_grad_reduce
        return (
            self.model.exchanges
            and backward.kind == "B"
            and not reduces
            and not self.data.waits(forward.stage)
        )

    def _interleave(self, ahead: list[Part], back: list[Part]) -> None:
        """Units with tokens that travel run in pairs, a forward with a backward pass; the others alone, before them."""
        while ahead or back:
            alone = _without_partner(ahead, back)
            if alone is not None:
                unit, times = alone.pop(0)
                self.emit(unit.forward if alone is ahead else unit.backward, times)
                continue
            (one, n), (other, m) = ahead[0], back[0]
            times = min(n, m)
            self.emit(self.model.joint(one.forward, other.backward), times)
            ahead[:1] = [(one, n - times)] if n > times else []
            back[:1] = [(other, m - times)] if m > times else []

    def _transient(self, stage: int) -> float:
        return max((u.transient for u, _ in self.parts(stage)), default=0.0)

    def _input_gradient(self, stage: int, microbatch: int) -> None:
        """The first half of a backward pass: what the products with weights need stays."""
        self.tape.phase = 1
        self.tape.cpu("backward_call")
        parts = list(self.parts(stage))
        above = max((unit.halves.transient for unit, _ in parts), default=0.0)
        transient = self._activations(above)
        for unit, times in reversed(parts):
            self.emit(unit.halves.input, times)
        del transient, self.stashed[stage, microbatch]
        held = sum(unit.halves.held * times for unit, times in parts)
        self.put_off[stage, microbatch] = self._activations(held)

    def _weight_gradient(self, stage: int, microbatch: int) -> None:
        """The second half."""
        self.tape.phase = 1
        self.back(stage, lambda unit: unit.halves.weights)
        del self.put_off[stage, microbatch]

    def _backward(self, stage: int, microbatch: int) -> None:
        self.tape.phase = 1
        self.tape.cpu("backward_call")
        if stage < len(self.owner) - 1:
            self.transfers.gather(self.engine.gathers)
        transient = self._activations(self._transient(stage))
        if self.deferred.takes(stage):
            self.back(stage, self.deferred.backward)
            self.deferred.keep()
        else:
            self.back(stage, lambda unit: unit.backward)
        del transient, self.stashed[stage, microbatch]

    def back(self, stage: int, which: Callable[[Unit], Pass]) -> None:
        """Passes that make gradients of weights, from the last unit on."""
        self.remaining[stage] -= 1
        self.data.backward(stage, which, self.remaining[stage] == 0)
        self.data.after(stage)


def _gradient_passes(operations: Sequence[Operation]) -> Counter[int]:
    """Passes that make gradients of weights, by stage."""
    passes: Counter[int] = Counter()
    for op in operations:
        one = op.backward if isinstance(op, Pair) else op
        if isinstance(one, Compute) and one.kind in "BW":
            passes[one.stage] += 1
    return passes


def _without_partner(ahead: list[Part], back: list[Part]) -> list[Part] | None:
    """The list whose first unit runs alone: it is none that travels, or the other list is at its end."""
    for parts in (ahead, back):
        if parts and parts[0][0].name not in PAIRED:
            return parts
    return None if ahead and back else ahead or back
