"""Forward and backward passes of whole models, recorded, and the kernels they launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.tensor import ExpertParallel
from prestep.workloads.torch import aten
from prestep.workloads.torch.block import Block, BlockParallel
from prestep.workloads.torch.compiled import compiled_block
from prestep.workloads.torch.convnet import MultilayerPerceptron, ResNet, mse_loss
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

MIB = 2.0**20
# One rotary embedding, forward and backward, and the gradients of a projection.
ROPE, ROPE_BACK = "mul mul sub mul mul add cat", "mul mul neg mul add_ mul add_ cat"
BOTH = "mm mm"
FUSED = "_scaled_dot_product_cudnn_attention"
ATTENTION = (
    f"_fused_rms_norm mm mm mm {ROPE} {ROPE} {FUSED} clone mm add _fused_rms_norm"
)
ATTENTION_BACK = (
    f"_fused_rms_norm_backward add_ {BOTH} {FUSED}_backward {ROPE_BACK} {ROPE_BACK} {BOTH} clone {BOTH} add clone {BOTH} add_ "
    "_fused_rms_norm_backward add_"
)
EXPERT, EXPERT_BACK = (
    "mm silu mm mul mm",
    f"{BOTH} mul mul {BOTH} silu_backward {BOTH} add",
)


def words(text: str) -> list[str]:
    return text.split()


def short(name: str) -> str:
    """An operation without namespace and overload, also as kernels are called: "add" of "aten.add.Tensor"."""
    return (
        name.split(".")[1] if name.startswith("aten.") else name.removeprefix("aten ")
    )


@dataclass
class Step:
    """One recorded forward and backward pass."""

    tape: Tape
    module: Module
    forward_end: int
    saved: float
    base: float
    arrived: list[Tensor]

    def kernels(self, layer: int, backward: bool) -> list[str]:
        """Kinds launched for a layer, without the memsets that belong to another operation."""
        t = self.tape
        span = (
            range(self.forward_end, len(t.columns.names))
            if backward
            else range(self.forward_end)
        )
        return [
            short(t.columns.names[i])
            for i in span
            if t.columns.layer[i] == layer and t.columns.names[i] != "memset"
        ]

    def kinds(self, layer: int, backward: bool) -> list[str]:
        """The same by what runs: `Step.kernels` has the names of what a program asked for."""
        every = self.launched(layer, backward)
        return [short(k.kind) for k in every if k.kind != "memset"]

    def products(self, layer: int) -> list[Kernel]:
        """Those of a layer's backward, in their order."""
        return [k for k in self.launched(layer) if k.kind == "aten mm"]

    def launched(self, layer: int, backward: bool = True) -> list[Kernel]:
        """A layer's kernels."""
        t = self.tape
        kernels, columns = list(t.shared.kernels), t.columns
        span = range(self.forward_end, len(columns.names))
        return [
            kernels[columns.payload[i]]
            for i in (span if backward else range(self.forward_end))
            if columns.layer[i] == layer
        ]


def record(build: Callable[[Tape], tuple[Module, Callable[[], Tensor]]]) -> Step:
    t = Tape(0, Shared(), defaultdict(lambda: 1e-6))
    module, run = build(t)
    arrived: list[Tensor] = []
    for p in module.parameters:
        p.on_grad = arrived.append
    base = t.memory.now
    t.memory.reset_peak()
    loss = run()
    step = Step(t, module, len(t.columns.names), t.memory.now - base, base, arrived)
    t.backward(loss, Tensor(None, loss.shape))
    return step


def transformer(
    name: str,
    batch: int,
    run: Callable[[Tape, Block, Tensor], Tensor],
    group: Group | None = None,
) -> Step:
    m = load_model(Model(name=name))

    def build(t: Tape) -> tuple[Module, Callable[[], Tensor]]:
        net = Transformer(
            t,
            m,
            range(4),
            True,
            True,
            ExpertParallel(group) if group else BlockParallel(),
        )
        return net, lambda: aten.cross_entropy(
            t, net.outputs(t, (batch, 2048), lambda b, x: run(t, b, x))[0]
        )

    return record(build)


def eager(t: Tape, block: Block, x: Tensor) -> Tensor:
    return block.forward(t, x)


def whole(t: Tape, block: Block, x: Tensor) -> Tensor:
    return compiled_block(t, block, x)


def bucketed(t: Tape, block: Block, x: Tensor) -> Tensor:
    return compiled_block(t, block, x, 25 * MIB)


def resnet(depth: int, batch: int) -> Step:
    def build(t: Tape) -> tuple[Module, Callable[[], Tensor]]:
        net = ResNet(
            t,
            ModelSpec(
                name="resnet", kind="resnet", layers=depth, image_size=224, classes=1000
            ),
        )
        return net, lambda: aten.cross_entropy(t, net.forward(t, batch))

    return record(build)


def perceptron(size: int, batch: int) -> Step:
    def build(t: Tape) -> tuple[Module, Callable[[], Tensor]]:
        net = MultilayerPerceptron(t, load_model(Model(name=f"mlp-{size}")))
        return net, lambda: mse_loss(t, net.forward(t, batch))

    return record(build)


def experts(ranks: int) -> Group | None:
    group = tuple(range(ranks))
    return Group("ep", group, [group], 1) if ranks > 1 else None


STEPS: dict[str, Callable[[], Step]] = {
    "llama": lambda: transformer("llama3-1b-plain", 2, eager),
    "llama compiled": lambda: transformer("llama3-8b-plain", 1, whole),
    "llama compiled in buckets": lambda: transformer("llama3-1b-plain", 2, bucketed),
    "wide llama compiled in buckets": lambda: transformer(
        "llama3-8b-plain", 1, bucketed
    ),
    "small llama compiled in buckets": lambda: transformer(
        "llama3-125m-plain", 1, bucketed
    ),
    "experts": lambda: transformer("moe8x-plain", 4, eager),
    "experts over four ranks": lambda: transformer("moe8x-plain", 4, eager, experts(4)),
    "resnet": lambda: resnet(50, 128),
    "mlp": lambda: perceptron(1024, 64),
}
