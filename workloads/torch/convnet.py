"""ResNet as torchvision builds it (bottleneck blocks, stride in the 3x3 convolution), and multilayer perceptrons.

References: He et al. 2015 (https://arxiv.org/abs/1512.03385); torchvision/models/resnet.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators.losses import elements
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch import aten
from prestep.workloads.torch import convolution as C
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec

# Blocks of the four stages by depth.
STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4


class ConvNorm(Module):
    """A convolution without bias, then a batch norm."""

    def __init__(
        self, t: Tape, inputs: int, outputs: int, kernel: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv = self.add(t, outputs, inputs, kernel, kernel, name="conv")
        C.channels_last(self.conv)
        self.weight = self.add(t, outputs, name="norm.weight")
        self.bias = self.add(t, outputs, name="norm.bias")
        self.statistics = C.Statistics(
            t.empty((outputs,), 2, "buffers"),
            t.empty((outputs,), 2, "buffers"),
            t.empty((), C.INDEX, "buffers"),
        )

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        t.cpu("module", 2)
        y = C.conv2d(t, x, self.conv, self.stride)
        return C.batch_norm(t, y, self.weight, self.bias, self.statistics)


class Bottleneck(Module):
    """1x1 down, 3x3, 1x1 up, added to the input (projected where its shape differs)."""

    def __init__(
        self, t: Tape, index: int, inputs: int, width: int, stride: int
    ) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.index = index
        sizes = (inputs, width, 1), (width, width, 3, stride), (width, outputs, 1)
        self.convs = [ConvNorm(t, *each) for each in sizes]
        projects = stride > 1 or inputs != outputs
        self.projection = ConvNorm(t, inputs, outputs, 1, stride) if projects else None
        self.norms = [*self.convs, *filter(None, [self.projection])]
        self.parameters = [p for norm in self.norms for p in norm.parameters]

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        outer, t.layer = t.layer, self.index
        t.cpu("module")
        out = C.relu_(t, self.convs[0].forward(t, x))
        out = C.relu_(t, self.convs[1].forward(t, out))
        out = self.convs[2].forward(t, out)
        identity = self.projection.forward(t, x) if self.projection else x
        out = C.relu_(t, C.add_(t, out, identity))
        t.layer = outer
        return out


class ResNet(Module):
    """ResNet-50, -101 or -152 (``m.layers``) on square images.

    Attributes
    ----------
    buffers : list of Tensor
        Running statistics, which data parallelism broadcasts at every forward pass (see `broadcast_buffers`).

    Raises
    ------
    InputError
        If the depth is none of these.
    """

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        if m.layers not in STAGES:
            depths = ", ".join(map(str, STAGES))
            raise InputError.of(
                m.name, "model.layers", str(m.layers), f"a ResNet's depth: {depths}"
            )
        self.image = m.image_size or 224
        self.stem = ConvNorm(t, 3, 64, 7, 2)
        self.blocks = _blocks(t, STAGES[m.layers])
        self.parameters = self.stem.parameters + [
            p for block in self.blocks for p in block.parameters
        ]
        features = EXPANSION * 512
        self.head = self.add(t, m.classes or 1000, features, name="head")
        self.head_bias = self.add(t, m.classes or 1000, name="head.bias")
        self.buffers = self._buffers()

    def _buffers(self) -> list[Tensor]:
        """Means and variances of all batch norms, then their counts of batches."""
        norms = [self.stem] + [norm for block in self.blocks for norm in block.norms]
        statistics = [norm.statistics for norm in norms]
        moments = [moment for s in statistics for moment in (s.mean, s.variance)]
        return [*moments, *(s.batches for s in statistics)]

    def forward(self, t: Tape, batch: int) -> Tensor:
        """Class scores (batch, classes) of a batch of images."""
        t.cpu("module", 3)
        images = C.channels_last(Tensor(None, (batch, 3, self.image, self.image)))
        x = C.max_pool2d(t, C.relu_(t, self.stem.forward(t, images)))
        for index, block in enumerate(self.blocks):
            with t.within(f"blocks.{index}"):
                x = block.forward(t, x)
        return F.linear(t, C.mean_pool(t, x), self.head, self.head_bias)


def _blocks(t: Tape, stages: tuple[int, ...]) -> list[Bottleneck]:
    blocks: list[Bottleneck] = []
    inputs = 64
    for stage, count in enumerate(stages):
        width = 64 * 2**stage
        for i in range(count):
            stride = 2 if i == 0 and stage > 0 else 1
            blocks.append(Bottleneck(t, len(blocks), inputs, width, stride))
            inputs = EXPANSION * width
    return blocks


def broadcast_buffers(
    t: Tape, buffers: list[Tensor], group: Group, stream: str
) -> None:
    """Rank 0's buffers to all: one flattened broadcast per type, then a copy back into every buffer.

    DistributedDataParallel does so before every forward pass (``broadcast_buffers``).
    """
    kinds = sorted({b.itemsize for b in buffers})
    flat = [
        t.empty((sum(b.elements for b in buffers if b.itemsize == kind),), kind)
        for kind in kinds
    ]
    t.cpu("broadcast_buffers")
    for whole in flat:
        t.cpu("elementwise_nograd")
        t.launch(Kernel("aten cat", (whole.elements,), bytes=2 * whole.size))
    for whole in flat:
        group.collective(t, "broadcast", whole.size, stream)
    t.wait(t.record(stream))
    for b in buffers:
        t.cpu("broadcast_copy")
        t.launch(Kernel("aten copy", (b.elements,), bytes=2 * b.size))


class MultilayerPerceptron(Module):
    """Layers of ``m.sizes``: [1024, 1024, 1] is a 1024 to 1024 layer and a 1024 to 1 layer."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.inputs, self.activation = m.sizes[0], m.activation or "relu"
        self.layers: list[tuple[Tensor, Tensor | None]] = []
        for i, (before, after) in enumerate(
            zip(m.sizes[:-1], m.sizes[1:], strict=True)
        ):
            w = self.add(t, after, before, name=f"fc{i + 1}.weight")
            self.layers.append(
                (w, self.add(t, after, name=f"fc{i + 1}.bias") if m.bias else None)
            )

    def forward(self, t: Tape, batch: int) -> Tensor:
        """Outputs (batch, last size) of a batch of samples, which are data and get no gradient."""
        t.cpu("module")
        x = Tensor(None, (batch, self.inputs), t.itemsize)
        for i, (w, bias) in enumerate(self.layers):
            t.cpu("module")
            if i > 0:
                x = aten.activation(t, self.activation, x)
            with t.within(f"layers.{i}"):
                x = F.linear(t, x, w, bias)
        return x


def mse_loss(t: Tape, x: Tensor) -> Tensor:
    """``torch.nn.functional.mse_loss`` against a target of the same shape: saves its input."""
    target, loss = Tensor(None, x.shape, x.itemsize), t.empty((), x.itemsize)
    squares = t.empty(x.shape, x.itemsize)
    t.cpu("loss")
    aten.call(t, elements, "mse_loss.default", (x, target), loss)
    del squares

    def backward(g: Tensor) -> list[Tensor | None]:
        arguments, y = (g, x, target, 1), t.empty(x.shape, x.itemsize)
        name = "mse_loss_backward.default"
        return [aten.call(t, elements, name, arguments, y)]

    return t.apply(loss, [x], backward)
