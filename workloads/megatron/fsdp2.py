"""Megatron-like layers under PyTorch's ``fully_shard``, as NeMo Automodel sets it up; one group of parameters a layer.

Rules of torch/distributed/fsdp/_fully_shard and of nemo_automodel/components (distributed/parallelizer.py,
moe/parallelizer.py, moe/fsdp_mixin.py):

* A layer is gathered where its pass is reached, which the host is early enough for to be beside the layer before;
  backward gathers the next layer as well. It is copied out of its buffer on the compute stream.
* Experts are a group of their own, over the ranks that have the same ones; where no other rank has them they are not
  sharded, and PyTorch adds up their gradients in the parameters' type.
* Gradients are copied into a buffer in the type of the reduction, one buffer at a time, and reduce-scattered on a
  stream of their own; shards take the parameters' type again.
* A microbatch that does not reduce adds its gradients to whole sums in the type of the reduction.
* With pipeline stages that the schedule knows as FSDP's, nothing is reduced before the last backward pass of a stage,
  which then reduces all at once and waits for it; gathered parameters stay till then, unless they are freed after each
  forward pass. A stage that hides its FSDP modules in one that is none reduces in every backward pass, waits for it,
  and is gathered again (reduce_every_microbatch; stage.py, backward_maybe_with_nosync).
* Automodel gives experts' group no mixed precision: their gradients are reduced in the parameters' type
  (experts_reduce_dtype).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DataParallel, Held, Rank, split
from prestep.workloads.megatron.sharded import cut
from prestep.workloads.megatron.units import Unit
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.fsdp import COPY_IN, GATHER, REDUCE
from prestep.workloads.parallel.group import Group

Place = tuple[int, int]  # stage, and the number of a layer in it
COMPUTED = 2  # bytes of a parameter, and of its gradient, as layers have them
WIDE = {"bf16": 2, "fp32": 4}
# Bytes moved for an element where PyTorch adds a gradient in 16 bits to an earlier one, and where FSDP adds it to a sum
# in fp32, or begins that sum.
ADDED, ADDED_WIDE, BEGUN_WIDE = 6.0, 10.0, 6.0


@dataclass(frozen=True)
class Mesh:
    """Ranks that shard one kind of parameters, and (hybrid sharding) those that have the same shards.

    ``wide``: bytes of a gradient in reductions.
    """

    group: Group
    wide: int
    copies: Group | None = None

    @property
    def shards(self) -> bool:
        return self.group.size > 1


@dataclass(frozen=True)
class Part:
    """Parameters of a unit that lie on one mesh."""

    mesh: Mesh
    count: int


class Fsdp2(DataParallel):
    """Which layers of a rank are whole, and what becomes of their gradients; has what `Replicated` has."""

    clips, sharded, updates_shards = False, True, True

    def __init__(self, rank: Rank, shards: int) -> None:
        self.rank, self.t, self.shards = rank, rank.tape, shards
        choices, p = rank.s.pytorch, rank.s.parallel
        self.stored = 4 if choices.master_weights else COMPUTED
        self.frozen_shards = shards
        # Spread experts are sharded over all that have them (Automodel's ep_shard axis); others lie with their layer.
        apart = max(1, shards * rank.edp.size // rank.dp.size)
        own_group, own_copies = cut(
            rank.edp, rank.edp.size if rank.grid.ep > 1 else apart
        )
        self.expert_shards = self.frozen_expert_shards = own_group.size
        group, copies = cut(rank.dp, shards)
        dtype = choices.reduce_dtype
        own = choices.experts_reduce_dtype or dtype
        self.meshes = (
            Mesh(group, WIDE[dtype], copies),
            Mesh(own_group, WIDE[own], own_copies),
        )
        self.every = choices.reduce_every_microbatch
        self.frees = p.reshards
        self.staged = rank.grid.pp > 1
        self.units: dict[int, list[Unit]] = {
            stage: [unit for unit, times in rank.parts(stage) for _ in range(times)]
            for stage in rank.stages
        }
        self.whole: dict[Place, Storage] = {}
        self.coming: dict[Place, tuple[int, ...]] = {}
        self.sums: dict[int, Storage] = {}
        self.passes = dict.fromkeys(rank.stages, 0)  # backward passes so far
        self.reduced: tuple[int, ...] = ()

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters and of gradients on this rank between steps: shards of both, in one type.

        Frozen parameters have no gradients.
        """
        frozen = sum(
            COMPUTED * (shared // self.shards + experts // self.expert_shards)
            for shared, experts in self.rank.frozen.values()
        )
        return Held(self.stored * states + frozen, self.stored * states)

    def begin(self) -> None:
        """Gathers begin when the optimizer has written the shards."""
        for stream in (COPY_IN, GATHER):
            self.t.wait(self.t.record(), stream)

    def after(self, stage: int) -> None:
        """With stages, all gradients of one that has made its last are reduced, and waited for."""
        if self.staged and not self.every and self.rank.remaining[stage] == 0:
            for place, unit in self._places(stage)[::-1]:
                self._free(place)
                self._reduce(unit, summed=True)
            self.sums.pop(stage, None)
            self.finish()

    def forward(self, stage: int) -> None:
        """A stage's forward pass."""
        places = self._places(stage)
        for place, unit in places:
            self._enter(place, unit)
            self.t.cpu("fsdp_post_forward", self._groups(unit))
            self.rank.emit(unit.forward, 1)
            if self.frees and place != places[-1][0]:  # the last is needed again
                self._free(place)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass; where it reduces, gradients of a layer go beside the next one's pass."""
        reduces = self.every or (last and not self.staged)
        places = self._places(stage)
        for i in reversed(range(len(places))):
            place, unit = places[i]
            self._enter(place, unit)
            if i > 0:
                self._unshard(*places[i - 1])
            self.rank.emit(which(unit), 1)
            self.t.cpu("fsdp_post_backward", self._groups(unit))
            if reduces or (self.frees and not self.staged):
                self._free(place)
            self._add_up(stage, unit, reduces)
            if reduces:
                self._reduce(unit, summed=not self.every and self.passes[stage] > 0)
        self.passes[stage] += 1
        if reduces:
            self.sums.pop(stage, None)
            if self.staged:
                self.finish()  # autograd's last callback

    def finish(self) -> None:
        """The compute stream waits for what is being reduced."""
        if self.reduced:
            self.t.cpu("fsdp_finalize")
            self.t.wait(self.reduced)
            self.reduced = ()

    # -- parameters -----------------------------------------------------------------------------
    def _places(self, stage: int) -> list[tuple[Place, Unit]]:
        """Layers of a stage in the order of the forward pass."""
        return [((stage, i), unit) for i, unit in enumerate(self.units[stage])]

    def _parts(self, unit: Unit) -> Iterator[Part]:
        """What a unit has on either mesh."""
        for mesh, count in zip(self.meshes, self.rank.weights(unit, 1), strict=True):
            if count:
                yield Part(mesh, count)

    def _sharded(self, unit: Unit) -> list[Part]:
        return [part for part in self._parts(unit) if part.mesh.shards]

    def _gathered(self, unit: Unit) -> list[Part]:
        """What is gathered of a unit: its sharded parameters, with those that are frozen."""
        trained, frozen = self.rank.weights(unit, 1), split(unit.frozen)
        counts = (sum(pair) for pair in zip(trained, frozen, strict=True))
        parts = zip(self.meshes, counts, strict=True)
        return [Part(mesh, count) for mesh, count in parts if count and mesh.shards]

    def _groups(self, unit: Unit) -> int:
        """Groups of parameters that the host walks over."""
        return len(self._gathered(unit))

    def _enter(self, place: Place, unit: Unit) -> None:
        """A layer's parameters are there before its pass."""
        self.t.cpu("fsdp_pre_forward", self._groups(unit))
        self._unshard(place, unit)
        if place in self.coming:
            self._arrive(place, unit)

    def _unshard(self, place: Place, unit: Unit) -> None:
        """Sets off the gathers of a layer, unless it is whole or under way."""
        parts, t = self._gathered(unit), self.t
        if place in self.whole or not parts:
            return
        t.cpu("fsdp_unshard", len(parts))
        t.cpu("fsdp_unshard_param", len(unit.parameters))
        size = float(COMPUTED * sum(part.count for part in parts))
        self.whole[place] = Storage(t.memory, size, "buffers")
        with t.on_stream(COPY_IN):
            for part in parts:
                own = part.count // part.mesh.group.size
                pass_over(t, own, float((self.stored + COMPUTED) * own))
                full = float(COMPUTED * part.count)
                part.mesh.group.collective(t, "all_gather", full, GATHER, in_place=True)
        self.coming[place] = t.record(GATHER)

    def _arrive(self, place: Place, unit: Unit) -> None:
        """The compute stream waits for a layer and copies it out; the buffer may then take the next."""
        t = self.t
        t.cpu("fsdp_wait", self._groups(unit))
        t.cpu("fsdp_wait_param", len(unit.parameters))
        t.wait(self.coming.pop(place))
        count = sum(part.count for part in self._gathered(unit))
        pass_over(t, count, 2.0 * COMPUTED * count)
        for stream in (COPY_IN, GATHER):
            t.wait(t.record(), stream)

    def _free(self, place: Place) -> None:
        """A layer's parameters are shards again."""
        self.whole.pop(place, None)

    # -- gradients --------------------------------------------------------------------------------
    def _add_up(self, stage: int, unit: Unit, reduces: bool) -> None:
        """Whole gradients of a microbatch and those of the ones before it."""
        first = self.passes[stage] == 0
        for part in self._parts(unit):
            moved = 0.0 if first else ADDED
            if part.mesh.shards:
                if reduces and (first or self.every):
                    continue  # straight into the reduction's buffer
                if part.mesh.wide > COMPUTED:
                    moved = BEGUN_WIDE if first else ADDED_WIDE
            if moved:
                pass_over(self.t, part.count, moved * part.count)
        if stage not in self.sums and not reduces:
            self.sums[stage] = Storage(self.t.memory, self._sums(stage), "gradients")

    def _sums(self, stage: int) -> float:
        """Bytes of a stage's whole gradients that wait for their reduction."""
        parts = (part for unit in self.units[stage] for part in self._sharded(unit))
        return float(sum(part.mesh.wide * part.count for part in parts))

    def _reduce(self, unit: Unit, summed: bool) -> None:
        """Gradients to shards, and over copies of the shards; ``summed``: from sums in the reduction's type."""
        t = self.t
        for part in self._sharded(unit):
            group, copies, wide = part.mesh.group, part.mesh.copies, part.mesh.wide
            t.cpu("fsdp_reduce_param", len(unit.parameters))
            t.wait(self.reduced)  # one buffer at a time
            read = wide if summed else COMPUTED
            pass_over(t, part.count, float((read + wide) * part.count))
            size = float(wide * part.count)
            group.collective(t, "reduce_scatter", size, REDUCE)
            if copies is not None:
                copies.collective(t, "all_reduce", size / group.size, REDUCE)
            own = part.count // group.size
            cast = wide + self.stored if wide != self.stored else 0
            earlier = 3 * self.stored if self.every and any(self.passes.values()) else 0
            if cast + earlier:
                pass_over(t, own, float((cast + earlier) * own), REDUCE)
            self.reduced = t.record(REDUCE)
