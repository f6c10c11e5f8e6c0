"""The units of a Megatron model (layers, embedding, head), each recorded when it is first wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.megatron.adapter import freeze
from prestep.workloads.megatron.further import Further
from prestep.workloads.megatron.gemm import Numbers
from prestep.workloads.megatron.hybrid_layer import HybridLayer
from prestep.workloads.megatron.modules import Embedding, Head, Layer
from prestep.workloads.megatron.passes import Pass, Source
from prestep.workloads.megatron.shard import Shard, kept, unquantized
from prestep.workloads.megatron.split import joint
from prestep.workloads.megatron.spread import Spread
from prestep.workloads.megatron.unit import Unit, record
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.precision import precision
from prestep.workloads.routing import Loads
from prestep.workloads.torch.again import NEVER, Again
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# What tells layers apart: their part, whether of experts, how far they look back, tokens of a compressed key, whether
# tokens travel aside, whether all runs again, loads of experts, whether nothing before is trained, type of products.
Key = tuple[str, bool, int, int, bool, bool, Loads, bool, str]


class Units:
    """The units of a model, each recorded when first wanted."""

    def __init__(
        self,
        scenario: JobSpec,
        m: ModelSpec,
        tp: Group,
        cp: Group | None,
        tape: Callable[[], Tape],
        spread: Spread | None = None,
        added: float | None = None,
        trainer: PyTorch | None = None,
    ) -> None:
        s, o = scenario.training, scenario.megatron
        self.m, self.tape = m, tape
        self.options, self.faults = o, scenario.faults
        self.recompute = _again(scenario)
        self.loss_scaled = precision(s.precision).scaled_loss
        shard = _shard(scenario, tp, cp, spread, added)
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
        experts, window = self.m.has_experts(index), self.m.window_of(index)
        shard, first = self._shard(aside, index), self.frozen and index == 0
        products = shard.numbers.products
        loads = shard.loads if experts else ()
        letter = self.m.part_of(index)
        ratio = self.m.ratio_of(index)
        key = (letter, experts, window, ratio, aside, whole, loads, first, products)
        if key not in self._layers:
            again = replace(self.recompute, full=True) if whole else self.recompute

            def build(t: Tape) -> Module:
                if letter:
                    return HybridLayer(t, self.m, shard, letter, window)
                return Layer(t, self.m, shard, experts, window, ratio)

            source = Source(
                "layer",
                self.tape,
                self._built(build),
                self._run_layer,
                self.inner,
                # Full recomputation needs an input with a gradient: only so is its backward called at all.
                first and not again.full,
            )
            self._layers[key] = record(source, again)
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
        if not aside:
            return shard
        options = replace(self.options, overlap_moe_expert_parallel_comm=True)
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
            self._further[aside] = record(
                Source(
                    "further",
                    self.tape,
                    self._built(lambda t: Further(t, self.m, shard)),
                    _forward,
                    self.inner,
                ),
                self.recompute,
            )
        return self._further[aside]

    def joint(self, forward: Pass, backward: Pass) -> Pass:
        """A forward and a backward pass at once."""
        if (forward, backward) not in self._joint:
            self._joint[forward, backward] = joint(forward, backward)
        return self._joint[forward, backward]

    @cached_property
    def embedding(self) -> Unit:
        """The look-up of words, which takes no activation."""

        def look_up(t: Tape, embedding: Module, _: Tensor) -> Tensor:
            return embedding.forward(t)  # type: ignore[attr-defined, no-any-return]

        def build(t: Tape) -> Module:
            return Embedding(t, self.m, self.shard)

        built = self._built(build)
        return record(Source("embedding", self.tape, built, look_up, (1,)), NEVER)

    @cached_property
    def head(self) -> Unit:
        """The last norm, the words' scores and the loss."""

        def build(t: Tape) -> Module:
            return Head(t, self.m, self.shard)

        built = self._built(build)
        return record(Source("head", self.tape, built, _forward, self.inner), NEVER)

    def _built(self, build: Callable[[Tape], Module]) -> Callable[[Tape], Module]:
        """How a module is made: with adapters all other weights are frozen."""
        if not self.frozen:
            return build

        def frozen(t: Tape) -> Module:
            module = build(t)
            freeze(module)
            return module

        return frozen


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
    cp: Group | None,
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
        cp,
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
