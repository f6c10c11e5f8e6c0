"""The units of a Megatron model (layers, embedding, head), each recorded when it is first wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.context import Context
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.megatron.expert_adapter import adapt
from prestep.workloads.megatron.gemm import Numbers
from prestep.workloads.megatron.modules import (
    Embedding,
    Further,
    Head,
    Layer,
)
from prestep.workloads.megatron.passes import Pass, Source, forward, part, pass_of
from prestep.workloads.megatron.shard import Shard, Spread, kept, unquantized
from prestep.workloads.megatron.split import Halves, halves, joint
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.orthogonal import Matrices, hidden
from prestep.workloads.parallel.group import Group
from prestep.workloads.precision import precision
from prestep.workloads.routing import Loads
from prestep.workloads.torch.again import NEVER, Again, Kept
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


@dataclass(frozen=True, eq=False)
class Unit:
    """A layer: both passes, and its bytes: ``kept`` from forward to backward by module, ``transient`` at most beside.

    ``parameters`` counts this rank's trained parameters by name, ``frozen`` those that stay as they are; ``matrices``
    are those that an orthogonal update takes. ``casts`` are bytes that a step's first microbatch moves for its weights
    before they are multiplied.
    """

    name: str
    forward: Pass
    backward: Pass
    kept: dict[str, float]
    transient: float
    parameters: dict[str, int]
    split: Callable[[], Halves] | None = None
    matrices: tuple[Matrices, ...] = ()
    frozen: dict[str, int] = field(default_factory=dict)
    casts: float = 0.0

    @property
    def stash(self) -> float:
        """Bytes that are kept from forward to backward."""
        return sum(self.kept.values())

    @cached_property
    def halves(self) -> Halves:
        """Backward in two halves, recorded when first wanted."""
        if self.split is None:
            raise RuntimeError(f"{self.name} was not recorded to be split")
        return self.split()


def record(source: Source, again: Again, casting: float = 0.0) -> Unit:
    """Runs a module forward and backward on a fresh tape and cuts what it issued in two.

    ``casting``: bytes moved for an element of its matrices in a step's first microbatch.

    Where it runs ``again`` its input is kept, with the results that are not made again, and backward begins with
    forward: what else waits for backward is there during it alone.
    """
    results = Kept(again.products) if again.products else None
    t, module, _, y, before = forward(source, results)
    cut, kept = t.issued, t.memory.kept()
    stash = t.memory.now - before
    if again.shortened:
        _repeat(t, source, module, again)
    t.phase = 1
    t.backward(y, Tensor(None, y.shape))
    transient = max(0.0, t.memory.peak - before - stash)
    if again:
        waiting = y.size + (0.0 if results is None else results.size)
        kept, transient = {"": waiting}, transient + max(0.0, stash + y.size - waiting)
    whole, name = t.program(), source.name
    ahead = part(whole, 0, cut)
    begin = 0 if again.from_input else cut
    back = part(whole, begin, len(whole))
    gradients = {parameter: at - begin for parameter, at in t.writes.items()}
    return Unit(
        name,
        pass_of(f"{name} forward", ahead, t.shared, t.reads),
        pass_of(f"{name} backward", back, t.shared, gradients),
        kept,
        transient,
        _parameter_counts(module, trained=True),
        partial(halves, source, again.full),
        _matrices(module),
        _parameter_counts(module, trained=False),
        casting * sum(p.elements for p in module.parameters if len(p.shape) > 1),
    )


def _matrices(module: Module) -> tuple[Matrices, ...]:
    """The parameters that an orthogonal update takes."""
    matrices = (hidden(p.name, p.shape) for p in module.parameters)
    return tuple(filter(None, matrices))


def _parameter_counts(module: Module, trained: bool) -> dict[str, int]:
    """Elements of the parameters, trained or frozen, by their names, which norms share."""
    counts: Counter[str] = Counter()
    for p in module.parameters:
        if p.requires_grad is trained:
            counts[p.name] += p.elements
    return dict(counts)


def _repeat(t: Tape, source: Source, module: Module, again: Again) -> None:
    """The forward pass once more in front of the backward pass, as far as it is needed.

    Its memory is that of the first time.
    """
    x, before, memory = Tensor(None, source.shape), t.issued, t.memory.moment()
    t.drop = again.dropped()
    with t.no_grad():
        source.run(t, module, x)
    t.drop = None
    if again.early:
        t.forget_from_last_product(before)
    t.memory.forget(memory)


# What tells layers apart: their parts, how far they look back, tokens of a compressed key, whether tokens travel aside,
# whether all runs again, loads of experts, whether nothing before is trained, type of products.
Key = tuple[str, int, int, bool, bool, Loads, bool, str]


class Units:
    """The units of a model, each recorded when first wanted."""

    def __init__(
        self,
        scenario: JobSpec,
        m: ModelSpec,
        tp: Group,
        context: Context | None,
        tape: Callable[[], Tape],
        spread: Spread | None = None,
        added: float | None = None,
        trainer: PyTorch | None = None,
    ) -> None:
        s, o = scenario.training, scenario.megatron
        self.scenario, self.m, self.tape = scenario, m, tape
        self.options, self.faults = o, scenario.faults
        self.recompute = _again(scenario)
        self.loss_scaled = precision(s.precision).scaled_loss
        shard = _shard(scenario, tp, context, spread, added)
        self.shard = replace(shard, trainer=trainer)
        self.inner = (self.shard.rows, s.micro_batch, m.residual)
        self.frozen = scenario.adapter.on
        self._layers: dict[Key, Unit] = {}
        self._further: dict[bool, Unit] = {}
        self._joint: dict[tuple[Pass, Pass], Pass] = {}

    def layer(self, index: int, aside: bool = False, whole: bool = False) -> Unit:
        """The unit of a layer: layers of one kind (experts or none, how far they look back) share it.

        ``whole``: it is one of those that run again whole in backward.

        ``aside``: its tokens travel to experts and back beside the computation of another microbatch.
        """
        aside = aside and self.exchanges
        window = self.m.window_of(index)
        shard, first = self._shard(aside, index), self.frozen and index == 0
        products = shard.numbers.products
        loads = shard.loads if self.m.has_experts(index) else ()
        letters, ratio = self.m.letters_of(index), self.m.ratio_of(index)
        key = (letters, window, ratio, aside, whole, loads, first, products)
        if key not in self._layers:
            again = replace(self.recompute, full=True) if whole else self.recompute

            def build(t: Tape) -> Module:
                return Layer(t, self.m, shard, letters, window, ratio)

            # Full recomputation needs an input with a gradient: only so is its backward called at all.
            first = first and not again.full
            unit = self._record("layer", build, again, shard.numbers, first)
            self._layers[key] = unit
        return self._layers[key]

    def _run_layer(self, t: Tape, layer: Module, x: Tensor) -> Tensor:
        t.cpu("checkpoint", self._wrappers)
        if self.faults.slow_per_layer and self.faults.slow_rank == t.rank:
            nanoseconds = round(self.faults.slow_per_layer * 1e9)
            t.launch(Kernel("spin", (nanoseconds,)))
        return _forward(t, layer, x)

    @property
    def _wrappers(self) -> int:
        """Parts of a layer that a checkpoint wraps: all of one with experts, else attention, MLP and both norms.

        nemo_automodel/components: moe/parallelizer.py (apply_ac), distributed/parallelizer.py. Compiled code has none.
        """
        if self.shard.trainer is None or self.shard.compiled or not self.recompute.full:
            return 0
        return 1 if self.m.experts else 4

    @property
    def exchanges(self) -> bool:
        """Whether tokens travel to experts."""
        return self.shard.spread is not None and self.shard.spread.group.size > 1

    def _shard(self, aside: bool, index: int) -> Shard:
        """The rank's part of a layer; ``aside`` as in `layer`."""
        shard, spread = self.shard, self.shard.spread
        if spread is not None and spread.layers:
            before = sum(self.m.has_experts(i) for i in range(index))
            shard = replace(shard, spread=spread.of(before))
        if self._plain(index):
            shard = unquantized(shard)
        options = replace(self.options, overlap_moe_expert_parallel_comm=aside)
        return replace(shard, options=options)

    def _plain(self, index: int) -> bool:
        """Whether a layer's products stay in 16 bits (fp8_utils.py, is_first_last_bf16_layer)."""
        first, last = (
            self.options.num_layers_at_start_in_bf16,
            self.m.layers - self.options.num_layers_at_end_in_bf16,
        )
        return index < first or last <= index < self.m.layers

    def further(self, aside: bool = False) -> Unit:
        """A layer of multi-token prediction, without its pass through the head."""
        aside = aside and self.exchanges
        if aside not in self._further:
            shard = kept(self._shard(aside, self.m.layers), "mtp")
            build = partial(Further, m=self.m, s=shard)
            unit = self._record("further", build, self.recompute, shard.numbers)
            self._further[aside] = unit
        return self._further[aside]

    def joint(self, forward: Pass, backward: Pass) -> Pass:
        """A forward and a backward pass at once."""
        if (forward, backward) not in self._joint:
            self._joint[forward, backward] = joint(forward, backward)
        return self._joint[forward, backward]

    @cached_property
    def embedding(self) -> Unit:
        """The look-up of words, which takes no activation."""
        return self._record("embedding", partial(Embedding, m=self.m, s=self.shard))

    @cached_property
    def head(self) -> Unit:
        """The last norm, the words' scores and the loss."""
        return self._record("head", partial(Head, m=self.m, s=self.shard))

    def _record(
        self,
        name: str,
        build: Callable[[Tape], Module],
        again: Again = NEVER,
        casts: Numbers | None = None,
        first: bool = False,
    ) -> Unit:
        """A unit, whose weights are frozen beside adapters; ``casts``: types in which its weights are multiplied."""

        def built(t: Tape) -> Module:
            module = build(t)
            if self.frozen:
                adapt(t, module, self.shard)
            return module

        run = self._run_layer if name == "layer" else _forward
        shape = (1,) if name == "embedding" else self.inner
        casting = _casting(self.scenario, casts) if casts else 0.0
        return record(Source(name, self.tape, built, run, shape, first), again, casting)


def _forward(t: Tape, module: Module, x: Tensor) -> Tensor:
    """What most units run: the module on the activation."""
    return module.forward(t, x)  # type: ignore[attr-defined, no-any-return]


def _again(scenario: JobSpec) -> Again:
    """What of every layer runs again."""
    recompute = scenario.training.recompute
    early = scenario.megatron.recompute_early_stop
    return Again(recompute == "full", recompute == "products", early)


def _shard(
    scenario: JobSpec,
    tp: Group,
    context: Context | None,
    spread: Spread | None,
    added: float | None,
) -> Shard:
    """The part of a layer that one rank has."""
    s, p, o = scenario.training, scenario.parallel, scenario.megatron
    return Shard(
        tp,
        p.sequence_parallel and p.tp > 1,
        o,
        _numbers(scenario, added),
        s.micro_batch,
        s.seq_len // p.cp,
        s.seq_len,
        context,
        s.recompute == "selective" or "core_attn" in o.recompute_modules,
        spread,
        s.packed,
        scenario.adapter,
    )


def _numbers(scenario: JobSpec, added: float | None) -> Numbers:
    """How projections compute; ``added`` as in `Numbers`, where an engine accumulates gradients its own way."""
    o = scenario.megatron
    kept_cast = o.fp8_param_gather or scenario.adapter.fp8_weights
    return Numbers(
        products=precision(scenario.training.precision).products,
        wide=4 if o.main_grads == "fp32" else 2,
        fused_accumulation=o.gradient_accumulation_fusion and added is None,
        overlap=o.tp_comm_overlap,
        asynchronous=o.async_tensor_model_parallel_allreduce and not o.launch_blocking,
        scaling=o.fp8_scaling,
        transposes=o.fp8_transposes,
        added=added,
        frozen=scenario.adapter.on,
        scatters=o.tp_comm_overlap and o.tp_comm_overlap_rs_dgrad,
        rotates=o.nvfp4_rht,
        transposes_weights=not o.keep_fp8_weight_transpose_cache,
        recasts=0.0 if kept_cast else 1 - 1 / microbatches_of(scenario),
        keeps_wide=o.fp8_scaling == "rowwise",
    )


def _casting(scenario: JobSpec, numbers: Numbers) -> float:
    """Bytes moved for an element of a layer's matrices in a step's first microbatch.

    Weights in 16 bits are cast (Transformer Engine, is_first_microbatch), as are those that are gathered in 16 bits to
    be MXFP8; what is gathered in 8 bits is read and written where products take it transposed
    (post_all_gather_processing).
    """
    o = scenario.megatron
    if scenario.adapter.fp8_weights or o.fp8_scaling == "rowwise":
        return 0.0
    if not o.fp8_param_gather or o.fp8_scaling == "mx":
        return numbers.casting
    return 2.0 if numbers.products == "fp8" and numbers.transposes else 0.0
