"""A hybrid's layer: a norm, one part, and the residual sum (megatron/core/ssm/{mamba_layer,mlp_layer}.py)."""

from __future__ import annotations

from collections.abc import Callable

from prestep.workloads.job.megatron import GraphedModule
from prestep.workloads.megatron.attention import Attention
from prestep.workloads.megatron.elementwise import bias_dropout_add
from prestep.workloads.megatron.feed_forward import FeedForward
from prestep.workloads.megatron.mla import LatentAttention
from prestep.workloads.megatron.modules import Norm
from prestep.workloads.megatron.moe import Experts
from prestep.workloads.megatron.recomputation import again, discarded
from prestep.workloads.megatron.scan import Delta, Kimi, Mamba
from prestep.workloads.megatron.shard import Shard, kept
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

Part = Mamba | Delta | Attention | LatentAttention | FeedForward | Experts


class HybridLayer(Module):
    """A layer with one part, named by its letter."""

    def __init__(
        self, t: Tape, m: ModelSpec, s: Shard, letter: str, window: int
    ) -> None:
        super().__init__()
        self.s, self.letter = s, letter
        self.norm = Norm(t, m)
        self.part = _BUILD[letter](t, m, s, window)
        for module in (self.norm, self.part):
            self.parameters += module.parameters

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        o = self.s.options
        t.cpu("module", 2)
        with t.capture(SCOPES[self.letter] in o.cuda_graph_scope):
            y = self._normed(t, x)
            if not isinstance(self.part, Experts):
                y = self._run(t, y)
        if isinstance(self.part, Experts):
            y = self._run(t, y)
        return bias_dropout_add(t, y, _bias(self.part), x, o)

    def _normed(self, t: Tape, x: Tensor) -> Tensor:
        apart = "layernorm" in self.s.options.recompute_modules
        return discarded(t, lambda given: self.norm.forward(t, given), x, apart)

    def _run(self, t: Tape, x: Tensor) -> Tensor:
        part = self.part
        name = {hybrid.FEED_FORWARD: "mlp", hybrid.EXPERTS: "moe"}.get(self.letter)
        with t.within(name or type(part).__name__.lower()):
            if name in self.s.options.recompute_modules:
                return again(t, lambda given: part.forward(t, given), x)
            return part.forward(t, x)


def _bias(part: Part) -> Tensor | None:
    """That of its last projection."""
    if isinstance(part, FeedForward | Experts):
        return part.fc2_bias
    return part.proj_bias


def _attention(t: Tape, m: ModelSpec, s: Shard, window: int) -> Part:
    s = kept(s, "attn")
    return LatentAttention(t, m, s) if m.latent else Attention(t, m, s, window)


def _experts(t: Tape, m: ModelSpec, s: Shard, _: int) -> Part:
    if s.spread is None:
        raise RuntimeError("a layer of experts that nobody spread")
    return Experts(t, m, s, s.spread)


_BUILD: dict[str, Callable[[Tape, ModelSpec, Shard, int], Part]] = {
    hybrid.MAMBA: lambda t, m, s, _: Mamba(t, m, s),
    hybrid.DELTA: lambda t, m, s, _: Delta(t, m, s),
    hybrid.KIMI: lambda t, m, s, _: Kimi(t, m, s),
    hybrid.ATTENTION: _attention,
    hybrid.FEED_FORWARD: lambda t, m, s, _: FeedForward(t, m, s),
    hybrid.EXPERTS: _experts,
}
#: What a layer is called where parts are captured. Megatron captures linear attention as attention.
SCOPES: dict[str, GraphedModule] = {
    hybrid.MAMBA: "mamba",
    hybrid.DELTA: "attn",
    hybrid.KIMI: "attn",
    hybrid.ATTENTION: "attn",
    hybrid.FEED_FORWARD: "mlp",
    hybrid.EXPERTS: "moe_router",
}
