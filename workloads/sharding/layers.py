"""Megatron-like layers that are fully sharded: by Megatron's own FSDP, DeepSpeed's stage 3, or PyTorch's FSDP2.

One unit a layer; under FSDP2 the embedding and the head of a dense model are one, the root's, which is kept until its
backward pass is done (`fully_shard` of the model itself). Experts lie on a mesh of their own, over the ranks that have
the same ones; where no other rank has them they are whole, and nothing of them moves. Frozen weights are gathered and
never reduced. With fewer shards than data-parallel ranks (hybrid sharding) shards are summed over the copies after they
are reduced.

Megatron's (core/distributed/fsdp of core 0.16) gathers layers ahead, as many as have `PREFETCH` elements, and frees
them alone: embedding and head are no units, stay until the step ends, and with pipeline stages all parameters do.
Gradients that are being reduced stay until there are more than `QUEUE` elements of them. Between steps a rank keeps
shards in 16 bits beside the fp32 ones that the optimizer updates, or (`fp32_shards`) fp32 ones alone.

FSDP2 as NeMo Automodel sets it up (distributed/parallelizer.py, moe/parallelizer.py, moe/fsdp_mixin.py) gathers a layer
where its pass is reached, and backward the one before. A microbatch that does not reduce adds to whole sums in the type
of the reduction. Pipeline schedules that know a stage as FSDP's reduce behind its last backward pass, all at once; a
stage that hides its modules in one that is none reduces in each (reduce_every_microbatch; stage.py,
backward_maybe_with_nosync). Experts' group has no mixed precision there (experts_reduce_dtype).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DataParallel, Held, Rank, Weights, split
from prestep.workloads.megatron.units import Unit
from prestep.workloads.memory.account import Storage
from prestep.workloads.sharding import fsdp
from prestep.workloads.sharding.policy import Mesh, Part, Policy, Streams
from prestep.workloads.sharding.unit import Flow, ShardedUnit

COMPUTED = 2  # bytes of a parameter, and of its gradient, as layers have them
OUTSIDE = ("embedding", "head")  # units of the root's group
# Elements that Megatron's FSDP gathers beyond a unit, and that wait to be reduced (suggested_communication_unit_size).
QUEUE = 1_000_000_000
PREFETCH = QUEUE // 2
WIDE = {"bf16": 2, "fp32": 4}


class LayerUnit(ShardedUnit):
    """Parameters of a layer, or of what is outside of layers; ``trained``: those with gradients, on every mesh."""

    def __init__(
        self, rank: Rank, units: Sequence[Unit], meshes: tuple[Mesh, Mesh], flow: Flow
    ) -> None:
        super().__init__(rank.tape, [], flow, sum(len(u.parameters) for u in units))
        in_fp8 = units[0].name == "layer" and rank.o.fp8_param_gather
        trained, frozen = (_together(rank, units, way) for way in (True, False))
        both, (first, second) = trained + frozen, flow.policy.reduced
        sent = 1 if in_fp8 else COMPUTED
        every = (
            self._part(meshes[0], trained.shared, both.shared, first, sent),
            self._part(meshes[1], trained.experts, both.experts, second, sent),
        )
        self.parts = [p for p in every if p.elements and p.mesh.shards]
        self.trained = [p for p in every if p.trained]
        self.sums: Storage | None = None

    def _part(self, mesh: Mesh, trained: int, count: int, wide: int, sent: int) -> Part:
        """A layer's parameters on a mesh: all are gathered, those that are trained reduced."""
        stored = self.policy.stored
        return Part(
            mesh,
            count,
            trained,
            full=float(COMPUTED * count),
            stored=float(stored * count),
            sent=float(sent * count),
            gradient=float(COMPUTED * trained),
            reduced=float(wide * trained),
            kept=float(stored * trained),
            cast=count if sent < COMPUTED else 0,
            tensors=self.tensors,
        )

    def reduce(self, summed: bool, earlier: bool, last: bool = True) -> None:
        """Gradients (``summed``: sums in the reduction's type) to shards, added to those of microbatches before.

        Megatron sums shards over their copies in the ``last`` microbatch alone (outer_fsdp_group_grad_reduce).
        """
        t, policy = self.t, self.policy
        for part in self.trained:
            if not part.mesh.shards and part.mesh.copies is None:
                continue
            if policy.one_buffer:
                t.cpu("fsdp_reduce_param", self.tensors)
                t.wait(self.flow.reduced)
                t.cpu("fsdp_reduce")
                # The last buffer goes before the next one comes.
                self.flow.sending = None
                self.flow.sending = Storage(t.memory, part.reduced, "buffers")
            for kernel in policy.pack(part, summed) if part.mesh.shards else ():
                t.launch(kernel)
            stream = self.scatter(part, among_copies=last or policy.staged)
            for kernel in policy.store(part, earlier):
                t.launch(kernel, stream)
            if earlier:
                own = part.trained // part.ranks
                pass_over(t, own, 3.0 * part.kept / part.ranks, stream)
            self.flow.reduced = self.flow.done = t.record(policy.streams.reduce)


def _together(rank: Rank, units: Sequence[Unit], trained: bool) -> Weights:
    """Trained or frozen parameters of units that are gathered at once: one copy of a table that they share."""
    several, total = len(units) > 1, Weights()
    for unit in units:
        counts = (unit.parameters if trained else unit.frozen).items()
        total += split({k: n for k, n in counts if not (several and rank.is_tied(k))})
    return total


class Run(NamedTuple):
    """A unit that runs with a group of parameters; ``first``, ``last``: of the group's runs in a forward pass."""

    unit: Unit
    group: LayerUnit
    first: bool
    last: bool


#: A group, its whole gradients, and the end of their reduction.
Reducing = tuple[LayerUnit, Storage | None, tuple[int, ...]]


class FullySharded(DataParallel):
    """Which layers of a rank are whole, and what becomes of their gradients."""

    clips, sharded = False, True

    def __init__(self, rank: Rank, shards: int, policy: Policy) -> None:
        self.rank, self.t, self.shards, self.policy = rank, rank.tape, shards, policy
        apart = max(1, shards * rank.edp.size // rank.dp.size)
        if policy.staged and rank.grid.ep > 1:
            apart = rank.edp.size  # Automodel's ep_shard axis
        first, groups = rank.grid.rank(0, rank.stage, 0), rank.groups
        meshes = (
            Mesh(*groups.cut(rank.dp, shards, first)),
            Mesh(*groups.cut(rank.edp, apart, first)),
        )
        self.expert_shards = self.frozen_expert_shards = meshes[1].group.size
        self.frozen_shards = shards
        self.flow = Flow(policy)
        self.reducing: deque[Reducing] = deque()
        pp = rank.grid.pp > 1
        self.kept: set[LayerUnit] = set()
        self.rooted = policy.staged and not pp and not rank.model.m.experts
        self.runs = {stage: self._runs(stage, meshes) for stage in rank.stages}
        self.passes = dict.fromkeys(rank.stages, 0)  # backward passes so far
        self.staged = pp and policy.staged
        self.every = rank.s.pytorch.reduce_every_microbatch and policy.staged
        self.frees = rank.s.parallel.reshards and (policy.staged or not pp)
        self.updates_shards = policy.staged or rank.o.fp32_shards

    def _runs(self, stage: int, meshes: tuple[Mesh, Mesh]) -> list[Run]:
        """A stage's units in their order, each with its group, and the groups with those gathered beside them."""
        parts = self.rank.parts(stage)
        units = [unit for unit, times in parts for _ in range(times)]
        outside = {u: None for u in units if self.rooted and u.name in OUTSIDE}
        root = LayerUnit(self.rank, [*outside], meshes, self.flow) if outside else None
        groups: list[LayerUnit] = []
        runs: list[Run] = []
        for unit in units:
            if root is None or unit not in outside:
                groups.append(LayerUnit(self.rank, [unit], meshes, self.flow))
                runs.append(Run(unit, groups[-1], True, True))
            else:
                runs.append(Run(unit, root, unit is units[0], False))
        if root is not None:
            groups.append(root)
            runs[-1] = runs[-1]._replace(last=True)
        for i, group in enumerate(groups):
            group.ahead = self._beyond(groups[i + 1 :], self.policy.ahead)
            # What layers gather explicitly they alone gather (set_modules_to_backward_prefetch).
            behind = 1 if group is root else self.policy.behind
            group.behind = self._beyond(groups[:i][::-1], behind)
        if self.policy.staged:
            # The last layer is needed again at once, and so is the root.
            self.kept.update(groups[-2:] if root is not None else groups[-1:])
        else:
            self.kept.update(run.group for run in runs if run.unit.name in OUTSIDE)
        return runs

    def _beyond(self, groups: Sequence[LayerUnit], count: float) -> Sequence[LayerUnit]:
        """The next groups: so many, or of so many elements (at least one)."""
        if not self.policy.by_elements:
            return groups[: int(count)]
        seen = accumulate(sum(p.elements for p in group.parts) for group in groups)
        return groups[: 1 + sum(total < count for total in seen)]

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of shards of parameters and of gradients on this rank between steps."""
        stored = self.policy.stored
        wide = stored if self.policy.staged else self.rank.wide
        return Held(stored * states, wide * states)

    def begin(self) -> None:
        """FSDP2's gathers begin when the optimizer has written the shards."""
        if self.policy.staged:
            self.flow.begin(self.t)

    def after(self, stage: int) -> None:
        """With FSDP2's stages, all gradients of one that has made its last are reduced, and waited for."""
        if self.staged and not self.every and self.rank.remaining[stage] == 0:
            for _, group, *_ in self.runs[stage][::-1]:
                group.free()
                group.reduce(summed=True, earlier=False)
                group.sums = None
            self.finish()

    def forward(self, stage: int) -> None:
        """A stage's forward pass."""
        for unit, group, first, last in self.runs[stage]:
            if first:
                group.pre_forward()
            if first and last:
                group.spend("fsdp_post_forward")
            self.rank.emit(unit.forward, 1)
            if self.frees and group not in self.kept:
                group.free()
        if self.policy.staged:  # the root's hook lets the last gather's buffer go
            group.let_through()

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass; where it reduces, gradients of a layer go beside the next one's pass."""
        policy, waiting = self.policy, []
        if policy.staged:
            reduces = frees = self.every or (last and not self.staged)
            frees |= self.frees and not self.staged
        else:
            reduces = frees = last or self.frees
        for unit, group, begins, ends in reversed(self.runs[stage]):
            if ends:
                group.pre_backward()
            if not policy.one_buffer:
                self._hold(group)
            self.rank.emit(which(unit), 1)
            if not begins:
                # Its gradients wait for those of the rest of the root; unsharded ones are among what is held.
                size = COMPUTED * sum(unit.parameters.values()) if group.parts else 0
                waiting.append(Storage(self.t.memory, float(size), "gradients"))
                continue
            waiting.clear()
            group.spend("fsdp_post_backward")
            if frees and (policy.staged or group not in self.kept):
                group.free()
            if policy.one_buffer:
                self._add_up(stage, group, reduces)
            if reduces:
                summed = not self.every and self.passes[stage] > 0
                self._make_room()
                sums, group.sums = group.sums, None
                group.reduce(summed, self.every and any(self.passes.values()), last)
                self.reducing.append(
                    (group, sums, self.t.record(policy.streams.reduce))
                )
        self.passes[stage] += 1
        if reduces and (self.staged or policy.queue):
            self._await_reductions()  # autograd's last callback

    def finish(self) -> None:
        """The computing stream waits for what is being reduced; what stayed gathered is written by the optimizer."""
        self._await_reductions()
        for group in self.kept if not self.policy.staged else ():
            group.free()

    def _await_reductions(self) -> None:
        self.reducing.clear()
        if not self.policy.staged:
            self.t.wait(self.t.record(self.policy.streams.reduce))
        elif self.flow.done:
            self.flow.finish(self.t)

    def _make_room(self) -> None:
        """Whole gradients stay while they are reduced; beyond so many elements computation waits for the oldest.

        Source: wait_for_previous_grad_reduce of Megatron's param_and_grad_buffer.py.
        """
        queue = self.policy.queue
        sent = [sum(p.trained for p in group.trained) for group, *_ in self.reducing]
        while self.reducing and sum(sent) > queue:
            *_, reduced = self.reducing.popleft()
            sent.pop(0)
            if queue:
                self.t.wait(reduced)

    def _hold(self, unit: LayerUnit) -> None:
        """Takes memory for a layer's whole gradients.

        Those that no other rank has are among what is held.
        """
        if unit.sums is None:
            here = [p.reduced for p in unit.trained if p.mesh.shards]
            unit.sums = Storage(self.t.memory, sum(here), "gradients")

    def _add_up(self, stage: int, unit: LayerUnit, reduces: bool) -> None:
        """Whole gradients of a microbatch and those of the ones before it."""
        first = self.passes[stage] == 0
        for part in unit.trained:
            moved = part.added(first)
            if not part.mesh.shards:
                moved = 0.0 if first else 3 * part.gradient
            elif reduces and (first or self.every):
                continue  # straight into the reduction's buffer
            if moved:
                pass_over(self.t, part.trained, moved)
        if not reduces:
            self._hold(unit)


def megatron(rank: Rank, shards: int) -> FullySharded:
    """Megatron's FSDP: layers ahead, copied out of their buffers as they arrive."""
    gather, reduce = fsdp.GATHER, fsdp.REDUCE
    policy = Policy(
        Streams("", gather, reduce, reduce),
        host="",
        ahead=PREFETCH,
        behind=PREFETCH,
        by_elements=True,
        queue=QUEUE,
        one_buffer=False,
        stored=4 if rank.o.fp32_shards else COMPUTED,
        reduced=(rank.wide, rank.wide),
        staged=False,
        arrive=lambda part: _over(part.elements, 2.0 * part.sent),
        pack=lambda part, _: _over(part.trained, part.gradient + part.reduced),
    )
    return FullySharded(rank, shards, policy)


def automodel(rank: Rank, shards: int) -> FullySharded:
    """PyTorch's FSDP2 around layers: copied in from shards, and out on the computing stream."""
    choices = rank.s.pytorch
    experts = choices.experts_reduce_dtype or choices.reduce_dtype
    policy = replace(
        fsdp.policy(None),
        streams=Streams(fsdp.COPY_IN, fsdp.GATHER, fsdp.REDUCE, fsdp.REDUCE),
        stored=4 if choices.master_weights else COMPUTED,
        reduced=(WIDE[choices.reduce_dtype], WIDE[experts]),
        ahead=choices.forward_prefetch,
        behind=choices.backward_prefetch or 1,
    )
    return FullySharded(rank, shards, policy)


def _over(elements: int, moved: float) -> Iterable[Kernel]:
    return (Kernel("fused", (elements,), bytes=moved),)
