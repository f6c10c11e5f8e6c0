"""Weights and kernels of state-space and linear-attention layers, which Megatron's layers and PyTorch's own share.

A causal convolution mixes neighbouring tokens, a scan runs over chunks of the sequence, a norm and a gate follow. The
kernels are those of mamba_ssm and of flash-linear-attention, whoever calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.models import hybrid
from prestep.workloads.models.hybrid import Sizes
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.functional import launched
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

MAMBA_CHUNK, DELTA_CHUNK = 128, 64  # tokens (MambaMixer.chunk_size; fla)
# Passes over its channels: causal_conv1d's forward reads and writes them; its backward reads them and their gradient
# and writes a gradient (a count, not measured).
CONV_PASSES = 2, 3
# Kernels that the host launches, forward and backward (profiles on an H100); each counts as an operator.
LAUNCHES = {
    "mamba2": (5, 25),
    "gated_norm": (1, 3),
    "gdn": (6, 14),
    "kda": (8, 15),
    "fla_conv1d": (1, 4),
}
# The gated delta rule in operators of PyTorch, which deterministic programs take in place of fla's, on chunks of
# DELTA_CHUNK tokens (Megatron-LM d98e8a64, torch_chunk_gated_delta_rule): rows of a chunk one after the other, then
# chunks one after the other. Counted on PyTorch 2.13's meta device, with what operators call inside and with fills of
# new memory: kernels and views of a layer and of each chunk; products among them; passes over values in fp32 of a layer
# and of each chunk (a gradient of a chunk's slice is as large as the whole sequence); what is kept, in such tensors.
OPERATORS = {"fwd": (575, 18), "bwd": (1606, 84)}
VIEWS = {"fwd": (478, 47), "bwd": (518, 47)}
CHUNK_PRODUCTS = {"fwd": 5, "bwd": 10}
PASSES = {"fwd": (138.4, 0.0), "bwd": (685.0, 25.66)}
KEPT = 25.7
NORMS = 2  # kernels between the convolution and a delta rule: a norm of queries, one of keys
WIDE = 4  # bytes of a decay


class MambaWeights(Module):
    """Parameters of Mamba-2 with so many heads: one projection in, convolution, steps and decays, norm, and back."""

    label, chunk = "scan", MAMBA_CHUNK

    def __init__(self, t: Tape, m: ModelSpec, own: Sizes) -> None:
        super().__init__()
        self.sizes = own
        width = hybrid.mamba_width(own)
        self.projection = self.add(t, width, m.hidden, name="in_proj")
        self.inner = [
            self.add(t, own.convolved, m.conv_width, name="conv1d"),
            self.add(t, own.convolved, name="conv1d.bias"),
            *(self.add(t, own.values, name=name) for name in ("dt_bias", "A_log", "D")),
        ]
        self.norm = self.add(t, own.value_width, name="mixer_norm")
        self.output = self.add(t, m.hidden, own.value_width, name="out_proj")


class DeltaWeights(Module):
    """Parameters of a delta rule with so many heads; how projections in are joined is the layer's own business."""

    part, kernel, chunk = hybrid.DELTA, "gdn", DELTA_CHUNK
    label = "scan"

    def __init__(self, t: Tape, m: ModelSpec, own: Sizes) -> None:
        super().__init__()
        self.m, self.sizes = m, own
        self._projections(t)
        self.conv = self.add(t, own.convolved, m.conv_width, name="conv1d")
        self._decays(t)
        self.norm = self.add(t, own.value_dim, name="mixer_norm")
        self.output = self.add(t, m.hidden, own.value_width, name="out_proj")

    def _projections(self, t: Tape) -> None:
        raise NotImplementedError

    def _decays(self, t: Tape) -> None:
        self.decays = [
            self.add(t, self.sizes.values, name=name) for name in ("dt_bias", "A_log")
        ]

    @property
    def decay_width(self) -> int:
        """Decays of a token: one for each head, or (Kimi delta attention) for each element of its key."""
        each = self.sizes.key_dim if self.part == hybrid.KIMI else 1
        return self.sizes.values * each


def kernel_shape(batch: int, tokens: int, own: Sizes, chunk: int) -> tuple[int, ...]:
    """As `prestep.sim.costs.estimators.scans` has them."""
    sizes = own.keys, own.key_dim, own.values, own.value_dim
    return (batch, tokens, *sizes, chunk)


def start(t: Tape, name: str, shape: tuple[int, ...], way: str) -> None:
    """The kernels of a scan in one direction."""
    t.cpu("triton_launch", LAUNCHES[name][way == "bwd"])
    t.launch(Kernel(f"{name}_{way}", shape))


def convolve(t: Tape, channels: int, way: str) -> None:
    """A causal convolution over so many elements, with its activation."""
    t.cpu("elementwise")
    passes = CONV_PASSES[way == "bwd"]
    t.launch(Kernel("fused", (channels,), bytes=2.0 * passes * channels))


def convolved_scan(
    t: Tape,
    x: Tensor,
    own: Sizes,
    shape: tuple[int, ...],
    weights: Sequence[Tensor] = (),
) -> Tensor:
    """Mamba-2's convolution and scan as one operator, which makes its inner values again in backward.

    What the projection made is kept. ``weights`` get a gradient here; without them whoever calls counts them itself.
    """
    channels = x.elements // x.shape[-1] * own.convolved
    y = t.empty((*x.shape[:-1], own.value_width), x.itemsize)
    convolve(t, channels, "fwd")
    start(t, "mamba2", shape, "fwd")
    ungated = t.empty(y.shape, y.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, ungated)
        convolve(t, channels, "fwd")
        start(t, "mamba2", shape, "bwd")
        convolve(t, channels, "bwd")
        gradient = t.empty(x.shape, x.itemsize)
        return [gradient, *(t.empty(w.shape, w.itemsize) for w in weights)]

    return t.apply(y, [x, *weights], backward)


def measured(
    t: Tape, name: str, like: Tensor, inputs: list[Tensor], shape: tuple[int, ...]
) -> Tensor:
    """An operator with kernels of its own (`prestep.sim.costs.estimators.scans`).

    It saves its inputs, and makes something like a tensor.
    """
    run = partial(start, t, name, shape)
    both = partial(run, "fwd"), partial(run, "bwd")
    return launched(t, inputs, like.shape, *both, inputs)


def by_operators(t: Tape, x: Tensor, width: int, shape: tuple[int, ...]) -> Tensor:
    """The gated delta rule in operators of PyTorch, of `kernel_shape`: chunks one after the other, all in fp32."""
    batch, tokens, _, key, heads, value, chunk = shape
    chunks, both = -(-tokens // chunk), batch * heads
    elements = both * chunks * chunk * (key + value) // 2

    def run(way: str) -> None:
        end = "_backward" if way == "bwd" else ""
        passes = PASSES[way][0] / chunks + PASSES[way][1]
        host = {"elementwise": OPERATORS[way], "launch": OPERATORS[way]}
        host["view"] = VIEWS[way]
        for _ in range(chunks):
            for name, (once, each) in host.items():
                priced = name if name == "launch" else name + end
                t.cpu(priced, once / chunks + each)
            t.launch(Kernel("fused", (elements,), bytes=4.0 * passes * elements))
            for _ in range(CHUNK_PRODUCTS[way]):
                t.launch(Kernel("aten bmm", (both, chunk, value, key), "fp32", "nn"))

    kept = t.empty((round(KEPT * elements),), WIDE)
    back = partial(run, "bwd")
    return launched(t, [x], (*x.shape[:-1], width), partial(run, "fwd"), back, [kept])
