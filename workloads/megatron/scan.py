"""State-space and linear-attention layers of Megatron: Mamba-2, the gated delta rule, Kimi delta attention.

A projection makes all that a scan wants, a causal convolution mixes neighbouring tokens, the scan runs over chunks of
the sequence, a norm and a gate, and a projection back. Heads, and the groups of keys that they share, are spread over
the tensor-parallel group; the scan sees the whole sequence, under context parallelism of some heads (scan_exchange.py).
Source: megatron/core/ssm/{mamba_mixer,gated_delta_net/gdn}.py; for Kimi delta attention its model's own code.
"""

from __future__ import annotations

from prestep.workloads.megatron.adapter import adapted_column, adapted_row, pair_of
from prestep.workloads.megatron.elementwise import fused, unsaved
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.scan_exchange import (
    ranks_of,
    repeated,
    spread,
    to_heads,
    to_sequence,
)
from prestep.workloads.megatron.shard import Shard, kept, whole
from prestep.workloads.models import hybrid
from prestep.workloads.models.hybrid import Sizes
from prestep.workloads.models.model import ModelSpec
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
    """Mamba-2: the scan is gated, and its result normed in groups (MambaMixer, use_mem_eff_path).

    What the projection makes is kept; the convolution's result and the states of chunks are made again in backward.
    """

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, hybrid.MAMBA).of_rank(s.group.size))
        self.s, self.spread = s, spread(self.sizes, s)
        self.into = pair_of(self, t, "in_proj", self.projection, s, row=False)
        self.out = pair_of(self, t, "out_proj", self.output, s, row=True)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        y = adapted_column(t, x, self.projection, self.into, self.s)
        y = to_heads(t, y, self._sent, self.s)
        y = batch_first(t, y)
        shape = _whole_shape(self.s, self.spread, self.chunk)
        y = convolved_scan(t, y, self.spread, shape)
        y = batch_first(t, y)
        y = to_sequence(t, y, self.s)
        y = measured(t, "gated_norm", y, [y, self.norm], self._shape)
        return adapted_row(t, y, self.output, self.out, kept(self.s, "mamba_out"))

    @property
    def _shape(self) -> tuple[int, ...]:
        return kernel_shape(self.s.batch, self.s.tokens, self.sizes, self.chunk)

    @property
    def _sent(self) -> tuple[int, ...]:
        """Columns that go from rank to rank: z, x, B, C and the heads' steps, each by itself."""
        own, keys = self.sizes, repeated(self.sizes, self.s)
        return own.value_width, own.value_width, keys, keys, own.values


class Delta(DeltaWeights):
    """The gated delta rule (GatedDeltaNet): queries and keys normed, decay and strength of each head by the token."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__(t, m, hybrid.sizes_of(m, self.part).of_rank(s.group.size))
        self.s, self.spread = s, spread(self.sizes, s)
        self.into = pair_of(self, t, "in_proj", self.projection, s, row=False)
        self.out = pair_of(self, t, "out_proj", self.output, s, row=True)

    @property
    def _width(self) -> int:
        """Columns of the projection on this rank."""
        return hybrid.delta_width(self.sizes)

    def _projections(self, t: Tape) -> None:
        self.projection = self.add(t, self._width, self.m.hidden, name="in_proj")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        y = to_heads(t, self._project(t, x), (self._width,), self.s)
        y = batch_first(t, y)
        mixed = self._part(t, y, self.spread.convolved)
        mixed = measured(t, "fla_conv1d", mixed, [mixed], self._shape)
        mixed = self._prepared(t, mixed)
        y = self._scan(t, mixed)
        y = gated_by_head(t, y, self.norm)
        y = batch_first(t, y)
        y = to_sequence(t, y, self.s)
        return adapted_row(t, y, self.output, self.out, self.s)

    def _project(self, t: Tape, x: Tensor) -> Tensor:
        """All that convolution and scan want of the tokens."""
        return adapted_column(t, x, self.projection, self.into, self.s)

    @property
    def _shape(self) -> tuple[int, ...]:
        return _whole_shape(self.s, self.spread, self.chunk)

    def _part(self, t: Tape, x: Tensor, width: int) -> Tensor:
        """Some columns of a projection, without a copy."""
        y = Tensor(None, (*x.shape[:-1], width), x.itemsize)
        return t.apply(y, [unsaved(x)], lambda g: [t.empty(x.shape, x.itemsize)])

    def _prepared(self, t: Tape, x: Tensor) -> Tensor:
        """Norms of queries and keys; decays in fp32 and strengths by a softplus and a sigmoid."""
        own, tokens = self.spread, x.elements // x.shape[-1]
        keys = 2.0 * tokens * own.key_width * x.itemsize
        width = self.decay_width // ranks_of(self.s)
        decays = tokens * width * (x.itemsize + WIDE)
        forward, backward = 2 * keys + decays, 3 * keys + 2 * decays
        return fused(t, [x], x.shape, forward, backward, kernels=(NORMS + 1, NORMS + 1))

    def _scan(self, t: Tape, x: Tensor) -> Tensor:
        y = t.empty((*x.shape[:-1], self.spread.value_width), x.itemsize)
        return measured(t, self.kernel, y, [x], self._shape)


class Kimi(Delta):
    """Kimi delta attention: a decay for each element of a key, which goes through a bottleneck, as does the gate."""

    part, kernel = hybrid.KIMI, "kda"

    @property
    def _width(self) -> int:
        return self.sizes.convolved + self.sizes.values

    def _decays(self, t: Tape) -> None:
        own, m = self.sizes, self.m
        decays = own.values * own.key_dim
        self.down = self.add(t, 2 * own.value_dim, m.hidden, name="bottleneck")
        self.up = self.add(
            t, decays + own.value_width, own.value_dim, name="bottleneck_up"
        )
        self.add(t, decays, name="dt_bias")
        self.add(t, own.values, name="A_log")

    @property
    def decay_width(self) -> int:
        return self.sizes.values * self.sizes.key_dim

    def _project(self, t: Tape, x: Tensor) -> Tensor:
        """Beside queries, keys and values what decays and gate are made of, from two narrow states of a token."""
        narrow = column_linear(t, x, self.down, whole(self.s))
        half = Tensor(None, (*narrow.shape[:-1], narrow.shape[-1] // 2))
        half = t.apply(half, [unsaved(narrow)], lambda g: [t.empty(narrow.shape)])
        wide = column_linear(t, half, self.up, self.s)
        y = super()._project(t, x)
        both = Tensor(y.storage, y.shape, y.itemsize)

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, wide)
            return [t.empty(y.shape, y.itemsize), t.empty(wide.shape, wide.itemsize)]

        return t.apply(both, [y, wide], backward)


def _whole_shape(s: Shard, own: Sizes, chunk: int) -> tuple[int, ...]:
    """A scan of the whole sequence, where a rank has a part of it otherwise."""
    return kernel_shape(s.batch, s.tokens * ranks_of(s), own, chunk)


def batch_first(t: Tape, x: Tensor) -> Tensor:
    """Tokens of a sample beside each other, or back: a copy where there are several samples."""
    if x.shape[1] == 1:
        return x
    moved = 2 * x.size
    return fused(t, [unsaved(x)], x.shape, moved, moved)


def gated_by_head(t: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """Each head's result normed and gated (jit-fused): reads both, writes one; backward also both gradients."""
    moved, back = 3 * x.size, 5 * x.size
    return fused(t, [x, weight], x.shape, moved, back, parameters=1)
