"""Which weights of a model get a low-rank adapter, and that all others are frozen.

Frozen weights may be in four bits, which are written out in 16 bits before each product (QLoRA, arXiv 2305.14314).
Source: bitsandbytes, autograd/_functions.py, `MatMul4Bit`: forward and backward call `dequantize_4bit` and multiply
by the result, which nothing keeps. Blocks of 64 elements share a scale of four bytes (`quantize_4bit`).
With double quantization scales are in 8 bits, and 256 of them share one more: they are written out first, by a kernel
for themselves and one that adds their mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job.adapter import Adapter, Target
from prestep.workloads.memory.account import Storage
from prestep.workloads.torch.adapter import FP32, Exchanges, LowRank
from prestep.workloads.torch.block import Attention, Block
from prestep.workloads.torch.latent_attention import LatentAttention
from prestep.workloads.torch.modules import FeedForward, Module
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.scan_layers import Scan
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

Names = dict[Target, tuple[str, ...]]
#: Weights of a block by what they project.
ATTENTION: Names = {"qkv": ("wqkv", "wq", "wk", "wv"), "proj": ("wo",)}
#: Of latent attention, where "qkv" stands for all that lead to queries, keys and values.
LATENT: Names = {
    "qkv": ("wq", "wq_a", "wq_b", "wkv_a", "wkv_b"),
    "q_down": ("wq_a",),
    "q_up": ("wq", "wq_b"),
    "kv_down": ("wkv_a",),
    "kv_up": ("wkv_b",),
    "proj": ("wo",),
}
FEED_FORWARD: Names = {"fc1": ("w1", "w3"), "fc2": ("w2",)}
SCANS: Names = {"in_proj": ("in_proj", "in_proj_narrow"), "out_proj": ("out_proj",)}
#: What makes decays and gates of Kimi delta attention: nobody puts adapters beside it.
BOTTLENECKS = ("bottleneck", "bottleneck_up")
ATTENDS = (Attention, LatentAttention)
#: Names of weights by the module that has them.
NAMES = (
    (Attention, ATTENTION),
    (LatentAttention, LATENT),
    (FeedForward, FEED_FORWARD),
    (Scan, SCANS),
)

#: Linear layers of a block, all of which bitsandbytes replaces; embedding, norms and head stay as they are.
PROJECTIONS = {
    name for _, part in NAMES for names in part.values() for name in names
} | set(BOTTLENECKS)
#: Elements that share a scale, and scales that share one themselves.
BLOCK, SCALES = 64, 256
#: Bytes of an element in four bits, and of a scale.
HALF, SCALE = 0.5, 4.0


def adapt(t: Tape, net: Transformer, choices: Adapter) -> None:
    """Freezes all weights of a model or a stage, and puts adapters beside those that `choices` names."""
    for p in net.parameters:
        p.requires_grad = False
    if choices.base != "bf16":
        frozen = [w for block in net.all_blocks for w in block.parameters]
        linear = [w for w in frozen if w.name in PROJECTIONS]
        pack(t, linear, choices.base == "nf4-double")
    for block in net.all_blocks:
        made = _adapters(t, _projections(block, choices), choices, block)
        layer = block.experts
        if layer is not None:
            of_experts = _adapters(t, _experts(layer, choices), choices, block)
            layer.expert_parameters = [*layer.expert_parameters, *of_experts]
            made += of_experts
        block.parameters = [*block.parameters, *made]
        net.parameters = [*net.parameters, *made]


Projections = list[tuple[Module, tuple[str, ...]]]


def _adapters(
    t: Tape, modules: Projections, choices: Adapter, block: Block
) -> list[Tensor]:
    """New matrices beside the weights of modules that are named."""
    experts, shares = block.experts is not None, block.parallel.adapter
    return [
        each
        for module, names in modules
        for w in module.parameters
        if w.name in names
        for each in _beside(
            t,
            w,
            choices,
            shares(module, w, experts and not isinstance(module, ATTENDS)),
        )
    ]


def _projections(block: Block, choices: Adapter) -> Projections:
    """Modules of a block with the names of their weights that get an adapter, but for the experts of a rank."""
    made: Projections = []
    for part in block.parts:
        module = part.shared if isinstance(part, MixtureOfExperts) else part
        for kind, names in NAMES:
            if isinstance(module, kind):
                made.append((module, _names(choices, names)))
    return made


def _experts(layer: MixtureOfExperts, choices: Adapter) -> Projections:
    """The same of a rank's experts, whose adapters no other rank of the expert-parallel group has."""
    return [(expert, _names(choices, FEED_FORWARD)) for expert in layer.local]


def _names(choices: Adapter, of_part: Names) -> tuple[str, ...]:
    """Names of weights of a part that get an adapter."""
    return tuple(n for each in choices.places for n in of_part.get(each, ()))


def _beside(
    t: Tape, w: Tensor, choices: Adapter, exchanges: Exchanges
) -> tuple[Tensor, Tensor]:
    """The two matrices beside a weight, which products of it find."""
    outputs, inputs = w.shape
    size = FP32 if choices.fp32 else 0
    into = t.parameter(choices.rank, inputs, itemsize=size, name="lora_a")
    out = t.parameter(outputs, choices.rank, itemsize=size, name="lora_b")
    t.adapters[w] = LowRank(into, out, choices, exchanges)
    return into, out


@dataclass(frozen=True)
class FourBits:
    """A weight in NF4; `double`: its scales are in 8 bits."""

    double: bool

    def size(self, elements: int) -> float:
        """Bytes of so many elements with their scales."""
        scales = elements / BLOCK
        each = 1.0 + SCALE / SCALES if self.double else SCALE
        return HALF * elements + each * scales

    def written_out(self, t: Tape, w: Tensor) -> Tensor:
        """The weight in 16 bits."""
        scales, n = -(-w.elements // BLOCK), w.elements
        if self.double:
            wide = Storage(t.memory, SCALE * scales, "workspace")
            for moved in ((1.0 + SCALE) * scales, 2 * SCALE * scales):
                t.cpu("elementwise_nograd")
                t.launch(Kernel("fused", (scales,), bytes=moved))
            read = HALF * n + SCALE * scales
            del wide
        else:
            read = self.size(n)
        t.cpu("elementwise_nograd")
        y = t.empty(w.shape, w.itemsize, "workspace")
        t.launch(Kernel("fused", (n,), bytes=read + w.itemsize * n))
        return y


def pack(t: Tape, weights: Iterable[Tensor], double: bool) -> None:
    """Keeps frozen matrices in four bits; products of them write them out."""
    for w in weights:
        form = FourBits(double)
        w.storage = Storage(t.memory, form.size(w.elements), "parameters")
        t.four_bits[w] = form
