"""One pipeline rank of a Megatron run: microbatches along the schedule, then gradients, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workloads.job import Job
from workloads.megatron.engine import Engine
from workloads.megatron.folding import Kind
from workloads.megatron.groups import Groups
from workloads.megatron.optimizer import optimize, reduce_tied, resident
from workloads.megatron.passes import Pass
from workloads.megatron.pipeline import Issued, Pair
from workloads.megatron.rank import DataParallel, Place, Rank
from workloads.megatron.sharded import FullySharded
from workloads.megatron.tensor_parallel import STREAM as TP
from workloads.megatron.unit import Unit
from workloads.megatron.units import Units
from workloads.megatron.zero import Zero2
from workloads.parallel.group import transfer
from workloads.schedules.runtime import Batch, Compute, Recv, Send, Wait
from workloads.torch.memory import Storage
from workloads.torch.tape import Tape

PP = "nccl pp"
PAIRED = ("layer", "further")  # units with tokens that travel
ONE_STREAM = ("gpipe", "1f1b")
Part = tuple[Unit, int]  # a unit, and how often it runs


class StageStep(Rank):
    """Records the step of one pipeline rank."""

    def __init__(
        self,
        scenario: Job,
        model: Units,
        groups: Groups,
        place: Place,
        tape: Tape,
        kind: Kind,
        engine: Engine,
    ) -> None:
        super().__init__(scenario, model, groups, place, tape, kind)
        self.engine = engine
        self.events: dict[int, tuple[int, ...]] = {}
        self.stashed: dict[tuple[int, int], Storage] = {}
        self.remaining = dict.fromkeys(place.stages, 0)
        self.run = 0
        self.copies: dict[int, list[int]] = {}
        self.put_off: dict[tuple[int, int], Storage] = {}
        self.data = self._data_parallel()

    def _data_parallel(self) -> DataParallel:
        p = self.s.parallel
        if p.data_parallel in ("fsdp", "zero3") and self.dp.size > 1:
            return FullySharded(self, min(p.fsdp_shards or self.dp.size, self.dp.size))
        if p.data_parallel == "zero2":
            return Zero2(self)
        return self.engine.replicated(self, sharded=p.data_parallel == "zero1")

    # -- the step ---------------------------------------------------------------------------------
    def record(self, operations: Sequence[Issued], runs: int) -> None:
        """One step in steady state."""
        t = self.tape
        self.held = resident(self)
        t.memory.reset_peak()
        t.cpu("step_python")
        self.data.begin()
        computes = [
            op.backward if isinstance(op, Pair) else op
            for op in operations
            if isinstance(op, Compute | Pair)
        ]
        for stage in self.stages:
            self.remaining[stage] = runs * sum(
                op.stage == stage and op.kind in "BW" for op in computes
            )
        for run in range(runs):
            self.run = run
            self._play(operations)
        t.phase, t.layer = 1, -1
        self.data.finish()
        reduce_tied(self)
        optimize(self)

    def _play(self, operations: Sequence[Issued]) -> None:
        t = self.tape
        for op in operations:
            if isinstance(op, Compute):
                self._compute(op)
            elif isinstance(op, Pair):
                self._pair(op)
            elif isinstance(op, Batch):
                self._post(op)
            elif isinstance(op, Wait):
                t.wait(self.events[op.handle])
                if self.o.p2p_sync or t.blocking:
                    t.synchronize()

    def _compute(self, op: Compute) -> None:
        self.tape.microbatch = op.microbatch
        run = {
            "F": self._forward,
            "B": self._backward,
            "I": self._input_gradient,
            "W": self._weight_gradient,
        }
        run[op.kind](op.stage, op.microbatch)

    def _forward(self, stage: int, microbatch: int) -> None:
        t = self.tape
        t.phase = 0
        t.cpu("pp_action")
        self._whole(stage > 0)
        self.data.forward(stage)
        stash = sum(unit.stash * times for unit, times in self.parts(stage))
        self.stashed[stage, microbatch] = Storage(t.memory, stash, "activations")

    def _pair(self, pair: Pair) -> None:
        """A forward and a backward pass whose tokens travel beside the other's computation, layer by layer."""
        f, b, t = pair.forward, pair.backward, self.tape
        if not self._overlaps(f, b):
            self._compute(f)
            self._compute(b)
            return
        self.remaining[b.stage] -= 1
        t.phase, t.microbatch = 1, b.microbatch
        t.cpu("pp_action")
        t.cpu("backward_call")
        ahead = list(self.parts(f.stage, aside=True))
        back = list(self.parts(b.stage, aside=True))[::-1]
        stash = sum(unit.stash * times for unit, times in ahead)
        self.stashed[f.stage, f.microbatch] = Storage(t.memory, stash, "activations")
        transient = Storage(t.memory, self._transient(b.stage), "activations")
        self._interleave(ahead, back)
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
        t = self.tape
        t.phase = 1
        t.cpu("backward_call")
        parts = list(self.parts(stage))
        above = max((u.halves.transient for u, _ in parts), default=0.0)
        transient = Storage(t.memory, above, "activations")
        for unit, times in reversed(parts):
            self.emit(unit.halves.input, times)
        del transient, self.stashed[stage, microbatch]
        held = sum(unit.halves.held * times for unit, times in parts)
        self.put_off[stage, microbatch] = Storage(t.memory, held, "activations")

    def _weight_gradient(self, stage: int, microbatch: int) -> None:
        """The second half."""
        self.tape.phase = 1
        self._back(stage, lambda unit: unit.halves.weights)
        del self.put_off[stage, microbatch]

    def _backward(self, stage: int, microbatch: int) -> None:
        t = self.tape
        t.phase = 1
        t.cpu("backward_call")
        self._whole(stage < len(self.owner) - 1, self.engine.gathers)
        transient = Storage(t.memory, self._transient(stage), "activations")
        self._back(stage, lambda unit: unit.backward)
        del transient, self.stashed[stage, microbatch]

    def _back(self, stage: int, which: Callable[[Unit], Pass]) -> None:
        """Passes that make gradients of weights, from the last unit on."""
        self.remaining[stage] -= 1
        self.data.backward(stage, which, self.remaining[stage] == 0)

    # -- pipeline ---------------------------------------------------------------------------------
    def _whole(self, received: bool, times: int = 1) -> None:
        """What came from another stage in parts, one to each tensor-parallel rank, is gathered (over NVLink)."""
        if not received or self.parts_sent == 1 or self.grid.pp == 1:
            return
        rows, b, h = self.model.inner
        for _ in range(times):
            self.tp.collective(
                self.tape, "all_gather", rows * b * h * 2.0, TP, in_place=True
            )
            self.tape.wait(self.tape.record(TP))

    @property
    def parts_sent(self) -> int:
        """Tensor-parallel ranks that each send a part of an activation that all of them have."""
        scatters = self.o.scatter_gather_tensors_in_pipeline
        return self.grid.tp if scatters and not self.model.shard.sequence else 1

    def _post(self, batch: Batch) -> None:
        t = self.tape
        parts = [self._transfer(op) for op in batch.ops]
        stream = self._stream(batch)
        t.wait(t.record(), stream)
        t.cpu("p2p_batch")
        t.cpu("p2p_op", len(batch.ops))
        t.communicate(parts, stream, "send_recv")
        self.events[batch.handle] = t.record(stream)

    def _transfer(self, op: Send | Recv) -> int:
        """The rendezvous of an activation with another stage; each tensor rank sends its part of it."""
        rows, b, h = self.model.inner
        size = rows * b * h * 2.0 / self.parts_sent
        here = self.grid.rank(self.replica, self.stage, 0)
        peer = self.grid.rank(self.replica, op.peer, 0)
        ends = (peer, here) if isinstance(op, Recv) else (here, peer)
        if op.peer not in self.copies:
            copies = self.groups.transfer_copies(here, peer, self.kind)
            self.copies[op.peer] = copies
        key = (*op.key, self.run)
        return transfer(self.tape, *ends, key, size, self.copies[op.peer])

    def _stream(self, batch: Batch) -> str:
        """With overlap each peer and direction has its own communicator, so that none blocks another."""
        schedule, one = self.s.parallel.schedule, batch.ops[0]
        if (
            not self.o.overlap_p2p_comm
            or schedule in ONE_STREAM
            or (schedule == "interleaved" and not self._chunked)
        ):
            return PP
        way = f"{PP} {'from' if isinstance(one, Recv) else 'to'} {one.what}"
        return way if schedule == "interleaved" else f"{way} {one.peer}"

    @property
    def _chunked(self) -> bool:
        return len(self.owner) > self.grid.pp


def _without_partner(ahead: list[Part], back: list[Part]) -> list[Part] | None:
    """The list whose first unit runs alone: it is none that travels, or the other list is at its end."""
    for parts in (ahead, back):
        if parts and parts[0][0].name not in PAIRED:
            return parts
    return None if ahead and back else ahead or back
