"""The units of a Megatron model (layers, embedding, head), each recorded when it is first wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from sim.graph.kernel import Kernel
from workloads.job import Job
from workloads.megatron.further import Further
from workloads.megatron.gemm import Numbers
from workloads.megatron.modules import Embedding, Head, Layer
from workloads.megatron.shard import Shard
from workloads.megatron.split import joint
from workloads.megatron.spread import Spread
from workloads.megatron.unit import NEVER, Again, Pass, Unit, record
from workloads.models.counts import stage_parameters
from workloads.models.model import ModelSpec
from workloads.parallel.group import Group
from workloads.precision import precision
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor


class Units:
    """The units of a model, each recorded when first wanted."""

    def __init__(
        self,
        scenario: Job,
        m: ModelSpec,
        tp: Group,
        cp: Group | None,
        tape: Callable[[], Tape],
        spread: Spread | None = None,
        added: float | None = None,
    ) -> None:
        s, o = scenario.training, scenario.megatron
        self.m, self.tape = m, tape
        self.options, self.faults = o, scenario.faults
        self.recompute = Again(
            s.recompute == "full", s.recompute == "products", o.recompute_early_stop
        )
        self.loss_scaled = precision(s.precision).scaled_loss
        self.shard = _shard(scenario, tp, cp, spread, added)
        self.inner = (self.shard.rows, s.micro_batch, m.hidden)
        self._layers: dict[tuple[bool, int, bool, bool], Unit] = {}
        self._further: dict[bool, Unit] = {}
        self._joint: dict[tuple[Pass, Pass], Pass] = {}

    def layer(self, index: int, aside: bool = False, whole: bool = False) -> Unit:
        """The unit of a layer: layers of one kind (experts or none, how far they look back) share it.

        ``whole``: it is one of those that run again whole in backward.

        ``aside``: its tokens travel to experts and back beside the computation of another microbatch.
        """
        aside = aside and self.exchanges
        kind = self.m.has_experts(index), self.m.window_of(index)
        if (*kind, aside, whole) not in self._layers:
            self._layers[*kind, aside, whole] = record(
                "layer",
                self.tape,
                lambda t: Layer(t, self.m, self._shard(aside), *kind),
                self._run_layer,
                self.inner,
                replace(self.recompute, full=True) if whole else self.recompute,
            )
        return self._layers[*kind, aside, whole]

    def _run_layer(self, t: Tape, layer: Module, x: Tensor) -> Tensor:
        if self.faults.slow_per_layer and self.faults.slow_rank == t.rank:
            t.launch(
                Kernel("spin", (round(self.faults.slow_per_layer * 1e9),))
            )  # nanoseconds
        return layer.forward(t, x)  # type: ignore[attr-defined, no-any-return]

    @property
    def exchanges(self) -> bool:
        """Whether tokens travel to experts."""
        return self.shard.spread is not None and self.shard.spread.group.size > 1

    def _shard(self, aside: bool) -> Shard:
        if not aside:
            return self.shard
        return replace(
            self.shard,
            options=replace(self.options, overlap_moe_expert_parallel_comm=True),
        )

    def further(self, aside: bool = False) -> Unit:
        """A layer of multi-token prediction, without its pass through the head."""
        aside = aside and self.exchanges
        if aside not in self._further:
            self._further[aside] = record(
                "further",
                self.tape,
                lambda t: Further(t, self.m, self._shard(aside)),
                lambda t, net, x: net.forward(t, x),  # type: ignore[attr-defined]
                self.inner,
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
        return record(
            "embedding",
            self.tape,
            lambda t: Embedding(t, self.m, self.shard),
            lambda t, net, x: net.forward(t),  # type: ignore[attr-defined]
            (1,),
            NEVER,
        )

    @cached_property
    def head(self) -> Unit:
        return record(
            "head",
            self.tape,
            lambda t: Head(t, self.m, self.shard),
            lambda t, net, x: net.forward(t, x),  # type: ignore[attr-defined]
            self.inner,
            NEVER,
        )

    def whole(self, layers: int) -> int:
        """Parameters of the whole model, without padding."""
        return stage_parameters(self.m, layers, True, True)


def _shard(
    scenario: Job,
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
    )


def _numbers(scenario: Job, added: float | None) -> Numbers:
    """How projections compute; ``added`` as in `Numbers`, where an engine accumulates gradients its own way."""
    o = scenario.megatron
    return Numbers(
        products=precision(scenario.training.precision).products,
        wide=4 if o.main_grads == "fp32" else 2,
        fused_accumulation=o.gradient_accumulation_fusion and added is None,
        overlap=o.tp_comm_overlap,
        asynchronous=o.async_tensor_model_parallel_allreduce and not o.launch_blocking,
        scaling=o.fp8_scaling,
        transposes=o.fp8_transposes,
        added=added,
    )
