"""Low-rank adapters beside frozen weights in plain PyTorch, as Hugging Face's PEFT composes them.

Source: peft/tuners/lora/layer.py, `Linear.forward`: ``result + lora_B(lora_A(dropout(x))) * scaling``, each operator a
kernel of its own. In fp32 (`autocast_adapter_dtype`) an adapter's input is converted to its type
(`_cast_input_dtype`), and back by autocast before the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.graph.kernel import Kernel
from workloads.job.adapter import Adapter, Target
from workloads.torch import four_bits
from workloads.torch.functional import add, by_number, launch_elementwise, product
from workloads.torch.modules import FeedForward, Module
from workloads.torch.moe import MixtureOfExperts
from workloads.torch.tape import Tape, Tensor
from workloads.torch.transformer import Block, Transformer

MASK = (
    1.0  # bytes that dropout keeps of an element (native_dropout's mask is of booleans)
)
FP32 = 4  # bytes of an element
#: Weights of a block by what they project.
ATTENTION: dict[Target, tuple[str, ...]] = {
    "qkv": ("wqkv", "wq", "wk", "wv", "wq_a", "wq_b", "wkv_a", "wkv_b"),
    "proj": ("wo",),
}
FEED_FORWARD: dict[Target, tuple[str, ...]] = {"fc1": ("w1", "w3"), "fc2": ("w2",)}


#: Linear layers of a block, all of which bitsandbytes replaces; embedding, norms and head stay as they are.
PROJECTIONS = {
    name for names in (*ATTENTION.values(), *FEED_FORWARD.values()) for name in names
}


@dataclass(frozen=True)
class LowRank:
    """The adapter of a projection: a product into its rank, and one out of it."""

    into: Tensor
    out: Tensor
    choices: Adapter

    def added(self, t: Tape, x: Tensor, y: Tensor) -> Tensor:
        """The projection's output with the adapter's for the same input."""
        t.cpu("module", 2)
        if self.choices.fp32:
            x = there_and_back(t, x)
        thin = product(t, self._dropped(t, x, "pre"), self.into)
        if self.choices.scaled == "inner":
            thin = by_number(t, thin)
        wide = product(t, thin, self.out)
        if self.choices.scaled == "output":
            wide = by_number(t, wide)
        return add(t, y, self._dropped(t, wide, "post"))

    def _dropped(self, t: Tape, x: Tensor, position: str) -> Tensor:
        """Dropout in this place, if it is here; without any PEFT has no module that does something."""
        if not self.choices.dropout or self.choices.dropout_position != position:
            return x
        return dropped(t, x)


def there_and_back(t: Tape, x: Tensor) -> Tensor:
    """An input in fp32, and in 16 bits again: two conversions each way, and a copy that the product keeps."""
    n, shape, itemsize = x.elements, x.shape, x.itemsize
    _convert(t, n, "elementwise")
    wide = t.empty(shape, FP32)
    y = t.empty(shape, itemsize)
    del wide

    def backward(g: Tensor) -> list[Tensor | None]:
        del g
        _convert(t, n, "elementwise_backward")
        return [t.empty(shape, itemsize)]

    return t.apply(y, [x], backward)


def _convert(t: Tape, elements: int, operation: str) -> None:
    for types in ("bf16>fp32", "fp32>bf16"):
        t.cpu(operation)
        moved = float((2 + FP32) * elements)
        t.launch(Kernel("aten copy", (elements,), types, bytes=moved))


def dropped(t: Tape, x: Tensor) -> Tensor:
    """Dropout in one kernel, which writes a mask beside its output; backward reads it."""
    shape, itemsize = x.shape, x.itemsize
    moved = 2 * x.size + MASK * x.elements
    t.cpu("elementwise")
    launch_elementwise(t, "fused", x.elements, moved)
    mask = t.empty(shape, 1)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        launch_elementwise(t, "fused", mask.elements, moved)
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty(shape, itemsize), [x], backward)


def adapt(t: Tape, net: Transformer, choices: Adapter) -> None:
    """Freezes all weights of a model or a stage, and puts adapters beside those that `choices` names."""
    for p in net.parameters:
        p.requires_grad = False
    if choices.base != "bf16":
        frozen = [w for block in net.blocks for w in block.parameters]
        linear = [w for w in frozen if w.name in PROJECTIONS]
        four_bits.pack(t, linear, choices.base == "nf4-double")
    for block in net.blocks:
        made = _adapters(t, _projections(block, choices), choices)
        if isinstance(block.ffn, MixtureOfExperts):
            of_experts = _adapters(t, _experts(block.ffn, choices), choices)
            block.ffn.expert_parameters = [*block.ffn.expert_parameters, *of_experts]
            made += of_experts
        block.parameters = [*block.parameters, *made]
        net.parameters = [*net.parameters, *made]


Projections = list[tuple[Module, tuple[str, ...]]]


def _adapters(t: Tape, modules: Projections, choices: Adapter) -> list[Tensor]:
    """New matrices beside the weights of modules that are named."""
    return [
        each
        for module, names in modules
        for w in module.parameters
        if w.name in names
        for each in _beside(t, w, choices)
    ]


def _projections(block: Block, choices: Adapter) -> Projections:
    """Modules of a block with the names of their weights that get an adapter, but for the experts of a rank."""
    attention = [n for each in choices.places for n in ATTENTION.get(each, ())]
    made: Projections = [(block.attention, tuple(attention))]
    if isinstance(block.ffn, FeedForward):
        made.append((block.ffn, _forward(choices)))
    shared = getattr(block.ffn, "shared", None)
    return made if shared is None else [*made, (shared, _forward(choices))]


def _experts(layer: MixtureOfExperts, choices: Adapter) -> Projections:
    """The same of a rank's experts, whose adapters no other rank of the expert-parallel group has."""
    return [(expert, _forward(choices)) for expert in layer.local]


def _forward(choices: Adapter) -> tuple[str, ...]:
    """Names of weights of a feed-forward network that get an adapter."""
    return tuple(n for each in choices.places for n in FEED_FORWARD.get(each, ()))


def _beside(t: Tape, w: Tensor, choices: Adapter) -> tuple[Tensor, Tensor]:
    """The two matrices beside a weight, which products of it find."""
    outputs, inputs = w.shape
    size = FP32 if choices.fp32 else 0
    into = t.parameter(choices.rank, inputs, itemsize=size, name="lora_a")
    out = t.parameter(outputs, choices.rank, itemsize=size, name="lora_b")
    t.adapters[w] = LowRank(into, out, choices)
    return into, out


def trained(parameters: list[Tensor]) -> list[Tensor]:
    """Those that get a gradient."""
    return [p for p in parameters if p.requires_grad]
