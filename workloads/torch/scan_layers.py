"""Hybrids' state-space and linear-attention layers, and convolutions: linear layers around libraries' kernels.

Source: transformers, models/{nemotron_h,qwen3_next}/modeling_*.py, and Kimi Linear's model code. Heads are not split
over ranks: no plan of torchtitan or Automodel does it.
"""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.attention import apart, split_joined
from prestep.workloads.torch.gated_convolution import GatedConvolution
from prestep.workloads.torch.modules import Linear
from prestep.workloads.torch.scans import (
    NORMS,
    WIDE,
    DeltaWeights,
    MambaWeights,
    convolved_scan,
    kernel_shape,
    measured,
)
from prestep.workloads.torch.tape import Tape, Tensor


class Mamba(MambaWeights):
    """Mamba-2 (NemotronHMamba2Mixer with mamba_ssm's kernels)."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, hybrid.MAMBA))

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        batch, tokens, _ = x.shape
        shape = kernel_shape(batch, tokens, self.sizes, self.chunk)
        y = F.linear(t, x, self.projection)
        y = convolved_scan(t, y, self.sizes, shape, self.inner)
        y = measured(t, "gated_norm", y, [y, self.norm], shape)
        return F.linear(t, y, self.output)


class Delta(DeltaWeights):
    """The gated delta rule (Qwen3NextGatedDeltaNet with flash-linear-attention's kernels)."""

    #: Operators that make decays and strengths, forward and backward: sigmoid, casts, sums, softplus, products.
    gates = 7, 6

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, self.part))

    def _projections(self, t: Tape) -> None:
        own, hidden = self.sizes, self.m.hidden
        width = own.convolved + own.value_width
        self.wide = self.add(t, width, hidden, name="in_proj")
        self.narrow = self.add(t, 2 * own.values, hidden, name="in_proj_narrow")

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        batch, tokens, _ = x.shape
        shape = kernel_shape(batch, tokens, self.sizes, self.chunk)
        mixed, gate, rates = self._projected(t, x)
        del x
        mixed = measured(t, "fla_conv1d", mixed, [mixed, self.conv], shape)
        mixed = self._prepared(t, mixed, rates)
        del rates
        like = Tensor(None, gate.shape, gate.itemsize)
        y = measured(t, self.kernel, like, [mixed], shape)
        del mixed
        y = gated_by_head(t, y, gate, self.norm)
        return F.linear(t, y, self.output)

    def _projected(self, t: Tape, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """What the convolution sees, the gate, and what decays and strengths are made of.

        Heads of keys lie between those of values: queries, keys and values are put beside each other by a copy.
        """
        own = self.sizes
        joined = F.linear(t, x, self.wide)
        rates = F.linear(t, x, self.narrow)
        mixed, gate = split_joined(t, joined, [own.convolved, own.value_width])
        del joined
        return beside(t, mixed), gate, [rates]

    def _prepared(self, t: Tape, x: Tensor, rates: list[Tensor]) -> Tensor:
        """Norms of queries and keys; decays in fp32 and strengths; keys repeated for the values that share them."""
        copies = NORMS if self._repeats else 0
        forward, backward = self.gates
        t.cpu("elementwise", NORMS + copies + forward)
        self._prepare(t, x, 2, forward)
        inputs = [x, *rates, *self.decays]

        def back(g: Tensor) -> list[Tensor | None]:
            t.cpu("elementwise_backward", NORMS + copies + backward)
            self._prepare(t, x, 3, backward)
            return [t.empty(each.shape, each.itemsize) for each in inputs]

        return t.apply(t.empty(x.shape, x.itemsize), inputs, back)

    def _prepare(self, t: Tape, x: Tensor, passes: int, gates: int) -> None:
        """Launches the kernels of norms, which pass over keys so often, of repeated keys, and of decays."""
        own, tokens = self.sizes, x.elements // x.shape[-1]
        key, decays = tokens * own.key_width, tokens * self.decay_width
        repeated = tokens * own.values * own.key_dim if self._repeats else 0
        for kernels, elements, moved in (
            (NORMS, key, float(passes * key * x.itemsize)),
            (NORMS, repeated, float((key + repeated) * x.itemsize)),
            (gates, decays, float(decays * (x.itemsize + WIDE))),
        ):
            for _ in range(kernels if elements else 0):
                t.launch(Kernel("fused", (elements,), bytes=moved))

    @property
    def _repeats(self) -> bool:
        return self.sizes.values > self.sizes.keys


class Kimi(Delta):
    """Kimi delta attention: projections apart; decays of every element of a key, and the gate, through bottlenecks."""

    part, kernel = hybrid.KIMI, "kda"
    gates = 2, 2

    def _projections(self, t: Tape) -> None:
        own, hidden = self.sizes, self.m.hidden
        widths = (own.key_width, own.key_width, own.value_width, own.values)
        self.apart = [self.add(t, width, hidden, name="in_proj") for width in widths]

    def _decays(self, t: Tape) -> None:
        own, hidden = self.sizes, self.m.hidden
        narrow, decays = own.value_dim, own.values * own.key_dim
        self.bottlenecks = [
            (
                self.add(t, narrow, hidden, name="bottleneck"),
                self.add(t, width, narrow, name="bottleneck_up"),
            )
            for width in (decays, own.value_width)
        ]
        self.decays = [
            self.add(t, decays, name="dt_bias"),
            self.add(t, own.values, name="A_log"),
        ]

    def _projected(self, t: Tape, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        *parts, strengths = (F.linear(t, x, w) for w in self.apart)
        decays, gate = (
            F.linear(t, F.linear(t, x, down), up) for down, up in self.bottlenecks
        )
        return apart(t, parts), gate, [decays, strengths]


Scan = Mamba | Delta | Kimi | GatedConvolution
LAYERS: dict[str, Callable[[Tape, ModelSpec], Scan]] = {
    hybrid.MAMBA: Mamba,
    hybrid.DELTA: Delta,
    hybrid.KIMI: Kimi,
    hybrid.CONVOLUTION: GatedConvolution,
}


def beside(t: Tape, x: Tensor) -> Tensor:
    """``torch.cat`` of parts of a tensor: one copy; backward hands views on."""
    t.cpu("elementwise")
    t.launch(Kernel("aten cat", (x.elements,), bytes=2 * x.size))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward")
        return [g]

    return t.apply(t.empty(x.shape, x.itemsize), [x], backward)


def gated_by_head(t: Tape, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """FusedRMSNormGated: each head's result normed and gated by one kernel: reads both, writes one.

    Backward it also reads the output's gradient and writes two; partial sums of the weight's are added up.
    """
    shape, itemsize, size = x.shape, x.itemsize, x.size
    t.cpu("triton_function")
    t.launch(Kernel("fused", (x.elements,), bytes=3 * size))

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (x, gate)
        t.cpu("triton_function_backward")
        t.launch(Kernel("fused", (g.elements,), bytes=5 * size))
        t.cpu("elementwise_backward")
        t.launch(Kernel("sum", (weight.elements,)))
        gradients = [t.empty(shape, itemsize) for _ in range(2)]
        return [*gradients, t.empty(weight.shape, weight.itemsize)]

    return t.apply(t.empty(shape, itemsize), [x, gate, weight], backward)
