"""Megatron's feed-forward parts, dense or of experts: router, dispatch of tokens, grouped products, combination.

Source: megatron/core/transformer/moe/{moe_layer,router,token_dispatcher,experts,shared_experts}.py. The host stops for
the numbers of tokens by expert (token_dispatcher.py), whose copies take it time besides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.adapter import adapted_column, adapted_row
from prestep.workloads.megatron.elementwise import (
    activate,
    copied_back,
    fused,
    pass_over,
    passing,
    unsaved,
)
from prestep.workloads.megatron.expert_adapter import ExpertAdapters
from prestep.workloads.megatron.gemm import Numbers, weight_gradient
from prestep.workloads.megatron.grouped_linear import GroupedLinear
from prestep.workloads.megatron.linear import column_linear, gradient_of
from prestep.workloads.megatron.shard import (
    EXPERTS_PREFIX,
    Shard,
    Spread,
    fused_ops,
    kept,
    unquantized,
    whole,
)
from prestep.workloads.megatron.token_dispatcher import (
    CALLS,
    MEASURED,
    TokenDispatcher,
)
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import again, detached, discarded
from prestep.workloads.torch.aten_products import multiply_sizes
from prestep.workloads.torch.attention import split_joined
from prestep.workloads.torch.modules import Module, scaled_by_token
from prestep.workloads.torch.modules import gated as gated_by
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes of a score that passes over the router's scores move: softmax or sigmoid, top-k, two scatters, counts, auxiliary
# loss (topk_softmax_with_capacity, switch_load_balancing_loss_func), each reading or writing fp32.
FORWARD, BACKWARD = (8.0,) * 8, (8.0,) * 6
# The same by Transformer Engine's kernels (common/fused_router): of fp32 scores and a byte of the choice. Forward:
# choice (logits; probabilities, choice, what backward needs), scores for the loss (the same), loss (scores), counts
# (choice). Backward: of the loss (writes), of its scores (gradient, what was kept; writes), of the choice (that and the
# choice), and both gradients of the logits added.
FUSED_FORWARD, FUSED_BACKWARD = (13.0, 13.0, 4.0, 1.0), (4.0, 12.0, 13.0, 12.0)


def route(t: Tape, x: Tensor, gate: Tensor, o: Numbers, fused: bool = False) -> Tensor:
    """Scores of all experts, and the choice among them; the input goes on to the experts chosen.

    ``fused``: by Transformer Engine's kernels.
    """
    experts, hidden = gate.shape
    tokens = x.elements // hidden
    t.cpu("router" if fused else "unfused_router")
    multiply_sizes(t, tokens, experts, hidden, "nt")
    scores = t.empty((tokens, experts), 4)
    passes = FUSED_FORWARD if fused else FORWARD
    t.cpu("elementwise", len(passes))
    _pass_scores(t, scores, passes)

    def backward(g: Tensor) -> list[Tensor | None]:
        _gate_gradients(t, x, gate, scores, o, FUSED_BACKWARD if fused else BACKWARD)
        # Beside the gradient from the experts.
        pass_over(t, g.elements, 3.0 * g.size)
        return [t.empty(x.shape, x.itemsize), gradient_of(gate)]

    return t.apply(detached(x), [x, gate], backward)


def _gate_gradients(
    t: Tape,
    x: Tensor,
    gate: Tensor,
    scores: Tensor,
    o: Numbers,
    passes: Sequence[float],
) -> None:
    """What the scores' gradients make of those of the input and of the gate, which is never quantized."""
    tokens, experts = scores.shape
    hidden = x.shape[-1]
    t.cpu("elementwise_backward", len(passes))
    _pass_scores(t, scores, passes)
    multiply_sizes(t, tokens, hidden, experts, "nn")
    unquantized = replace(o, products="")
    if gate.requires_grad:
        weight_gradient(t, experts, hidden, tokens, unquantized, (x, scores))


def _pass_scores(t: Tape, scores: Tensor, passes: Sequence[float]) -> None:
    """Elementwise kernels over the scores, each moving so many bytes of one."""
    n = scores.elements
    for moved in passes:
        pass_over(t, n, moved * n)


class FeedForward(Module):
    """One projection up (for gated ones both halves at once), the activation, and one down."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, fused_ops(s)
        inner = m.ffn // s.group.size
        up = inner * (2 if m.gated else 1)
        self.fc1 = self.add(t, up, m.hidden, name="linear_fc1")
        self.fc1_bias = self.add_if(t, m.bias, up, name="linear_fc1.bias")
        self.fc2 = self.add(t, m.hidden, inner, name="linear_fc2")
        self.proj_bias = self.add_if(t, m.bias, m.hidden, name="linear_fc2.bias")
        for name in ("alpha_p", "alpha_n"):
            self.add_if(t, m.activation == "xielu", 1, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        y = adapted_column(t, x, self.fc1, s)
        y = self._activate(t, y)
        return adapted_row(t, y, self.fc2, s, "fc2")

    def _activate(self, t: Tape, y: Tensor) -> Tensor:
        """The activation, in one kernel unless it is a product of eager operators."""
        s, gated = self.s, self.m.gated
        if gated and self.fc1_bias is None and s.eager("activation"):
            first, second = split_joined(t, y, [y.shape[-1] // 2] * 2)
            return gated_by(t, self.m.activation, first, second)
        written = s.numbers.written
        return activate(t, y, self.fc1_bias, gated, s.options, written)


# Numbers that the host waits for in a layer where tokens are not padded (token_dispatcher.py). All-to-all: tokens by
# expert, splits of what is sent and of what is received, rows after the permutation. DeepEP and HybridEP: rows that
# arrive, and tokens by expert (experts.py, tolist). All-gather: tokens by expert alone. Copies of a captured preprocess
# are behind one event.
COUNTS = {"alltoall": 4, "allgather": 1, "flex": 2}
CAPTURED_COUNTS = 1
# Passes over the experts' output that eager biases make: product, sum, joined, cast, forward and backward.
BIAS_MOVED = (14, 18)
# Eager kernels over halves of rows, which are not vectorized: two clamps; backward three comparisons and two choices
# (weighted_bias_quick_geglu_impl). Both ways the halves are joined.
CLAMPS = (2, 5)


class Experts(Module):
    """A feed-forward layer of experts with its router, and experts that see every token beside them."""

    proj_bias = None  # already added here

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, spread: Spread) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.local = m.experts // spread.group.size
        self.dispatcher = TokenDispatcher(replace(m, hidden=m.routed_hidden), s, spread)
        self.gate = self.add(t, m.experts, m.hidden, name="router")
        self.add_if(t, m.router_bias, m.experts, name="router.bias")
        inner = m.moe_ffn // self.dispatcher.shards
        up = inner * (2 if m.gated else 1)
        outer = m.routed_hidden
        names, sizes = ("linear_fc1", "linear_fc2"), ((up, outer), (outer, inner))
        self.fc1, self.fc2 = (
            self.project(t, *size, f"{EXPERTS_PREFIX}{name}", m.bias, self.local)
            for name, size in zip(names, sizes, strict=True)
        )
        self.fc1_bias = self.biases.get(self.fc1)
        self.down_bias = self.biases.get(self.fc2)
        self.adapters = ExpertAdapters(s)
        latent = m.moe_latent
        self.narrow = self.add_if(t, latent > 0, latent, m.hidden, name="fc1_latent")
        self.widen = self.add_if(t, latent > 0, m.hidden, latent, name="fc2_latent")
        self.shared = self._shared_experts(t) if m.shared_experts else None
        self.shared_gate = self.add_if(
            t, m.shared_gate, 1, m.hidden, name="gate_weight"
        )

    def _shared_experts(self, t: Tape) -> FeedForward:
        """Experts that see every token are one feed-forward layer as wide as all of them."""
        width = self.m.moe_ffn * self.m.shared_experts
        model = replace(self.m, ffn=width, bias=False)
        return self.child(FeedForward(t, model, self.s))

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        o = self.s.options
        shared: list[Tensor] = []

        def share() -> None:
            if self.shared is None:
                return
            repeats = "shared_experts" in o.recompute_modules
            run = partial(self._share, t, self.shared)
            shared.append(again(t, run, x) if repeats else run(x))

        # Without a name for the rows, which are freed once the first products have read them.
        shape = (*x.shape[:-1], self.m.routed_hidden)
        beside = share if o.moe_shared_expert_overlap else None
        y = self._compute(
            t,
            self.dispatcher.dispatch(
                t, self._routed(t, x, None if beside else share), beside
            ),
        )
        y = self._around(t, self.dispatcher.combine(t, y, shape), "behind")
        y = self._at_width(t, y, self.widen)
        for other in shared:
            captured = beside is None and "moe_router" in o.cuda_graph_scope
            other = copied_back(t, other, captured)
            both = [unsaved(y), unsaved(other)]
            y = fused(t, both, y.shape, 3 * y.size, 0.0, kernels=(1, 0))
        return y

    def _routed(self, t: Tape, x: Tensor, first: Callable[[], None] | None) -> Tensor:
        """Rows with experts chosen for them, as they are sent."""
        o = self.s.options
        captured, ahead = (
            name in o.cuda_graph_scope for name in ("moe_router", "moe_preprocess")
        )
        scores = 4.0 * x.elements / self.m.hidden * self.m.experts
        with t.capture(captured, False):
            if first is not None:
                first()
            y = route(t, x, self.gate, self.s.numbers, o.moe_router_fusion)
            y = self._around(t, y, "router")
        y = copied_back(t, y, captured and not ahead, scores)
        with t.capture(ahead, False):
            y = self._at_width(t, y, self.narrow)
            y = self._around(t, y, "ahead")
            y = self.dispatcher.preprocess(t, y)
        t.cpu("moe_counts", self._counts)
        return copied_back(t, y, captured and ahead, scores)

    def _around(self, t: Tape, x: Tensor, part: str) -> Tensor:
        """The same value; the host does a part of the layer, a share of what was measured of one dispatcher's."""
        names = "expert_layer", "expert_layer_backward"
        forward, backward = (
            partial(t.cpu, name, getattr(calls, part) / sum(measured))
            for name, calls, measured in zip(
                names, self.dispatcher.calls, CALLS[MEASURED], strict=True
            )
        )
        return passing(t, x, forward, backward)

    def _share(self, t: Tape, shared: FeedForward, x: Tensor) -> Tensor:
        """What experts that see every token make of it, scaled by the token's gate where the model has one."""
        y, w = shared.forward(t, x), self.shared_gate
        if w is None:
            return y
        scores = column_linear(t, x, w, whole(unquantized(self.s)))
        return scaled_by_token(t, y, scores)

    def _at_width(self, t: Tape, x: Tensor, w: Tensor | None) -> Tensor:
        """Tokens projected to another width, where experts have one of their own (latent MoE); whole on every rank."""
        s = kept(whole(self.s), "moe_latent")
        return x if w is None else column_linear(t, x, w, s)

    @property
    def _counts(self) -> int:
        """Numbers that the host waits for in a forward pass."""
        o = self.s.options
        if o.moe_pad_to_capacity:
            return 0
        if (
            o.moe_token_dispatcher == "flex"
            or "moe_preprocess" not in o.cuda_graph_scope
        ):
            return COUNTS[o.moe_token_dispatcher]
        return CAPTURED_COUNTS

    def _compute(self, t: Tape, x: Tensor) -> Tensor:
        """What the local experts make of their rows."""
        o, numbers = self.s.options, self.s.numbers
        adapted = bool({self.fc1, self.fc2} & t.pairs.keys())
        kernels_fused = o.moe_fused_mlp and bool(numbers.products) and not adapted
        products = GroupedLinear(
            self.dispatcher.counts, numbers, o.moe_grouped_gemm, kernels_fused
        )
        y = products.linear(
            t, x, self.fc1, (True, not kernels_fused), self._epilogue_bias
        )
        x = self.adapters.beside(t, x, y, self.fc1, products, row=False)
        del y
        x = self._written(t, x) if kernels_fused else self._activate(t, x)
        y = products.linear(t, x, self.fc2, (not kernels_fused, True))
        x = self.adapters.beside(t, x, y, self.fc2, products, row=True)
        return (_streamed_bias if kernels_fused else _add_bias)(t, x, self.down_bias)

    def _written(self, t: Tape, x: Tensor) -> Tensor:
        """The activation in the products' kernels, which write what backward needs and what they multiply next."""
        shape = (*x.shape[:-1], x.shape[-1] // (1 + self.m.gated))
        return fused(t, [x], shape, 0.0, 0.0, kernels=(0, 0))

    @property
    def _epilogue_bias(self) -> Tensor | None:
        """The first projection's bias where its products add it, and make its gradient (TEGroupedMLP)."""
        return self.fc1_bias if self.s.trainer is None else None

    def _activate(self, t: Tape, x: Tensor) -> Tensor:
        """The activation as a kernel of its own, behind clamps where the model has them."""
        m, s = self.m, self.s
        bias = None if s.trainer is None else self.fc1_bias

        def run(given: Tensor) -> Tensor:
            if m.clamped and s.trainer is None:
                given = _clamp(t, given)
            return activate(t, given, bias, m.gated, s.options, weighted=weighted)

        weighted = s.trainer is None and m.gated
        return discarded(t, run, x, "moe_act" in s.options.recompute_modules)


def _clamp(t: Tape, x: Tensor) -> Tensor:
    """Both halves of a gated activation's input clamped by eager operators, and joined."""
    size, half = 2 * x.size, x.elements // 2

    def run(count: int) -> None:
        for _ in range(count):
            t.launch(Kernel("aten mul", (half,), layout="strided", bytes=size / 2))
        t.launch(Kernel("aten cat", (x.elements,), bytes=size))

    return _eager(t, x, (), lambda: run(CLAMPS[0]), lambda: run(CLAMPS[1]))


def _streamed_bias(t: Tape, x: Tensor, bias: Tensor | None) -> Tensor:
    """The same beside fused products, as a stream of the eager kernels' bytes.

    Transformer Engine sums up both gradients in one kernel there (``grouped_dbias_dscales``). What takes the rest of
    this time is not known (lab/notes/models.md).
    """
    if bias is None:
        return x
    forward, backward = (moved * x.size for moved in BIAS_MOVED)
    inputs = [unsaved(x), bias]
    return fused(t, inputs, x.shape, forward, backward, parameters=1, kernels=(4, 5))


def _add_bias(t: Tape, x: Tensor, bias: Tensor | None) -> Tensor:
    """The experts' output with their biases, where they have them.

    ``TEGroupedMLP._apply_bias`` adds a bias times the router's weight expert by expert, in fp32, joins the sums and
    casts them. The kernels are those that a profiler saw on an H200 (PyTorch 2.11; lab/notes/models.md).
    """
    if bias is None:
        return x
    experts, n, width = bias.shape[0], x.elements, x.shape[-1]
    each = max(width, n // experts)

    def product(moved: float) -> None:
        t.launch(Kernel("aten mul", (each,), "fp32", "strided", moved * each))

    def forward() -> None:
        for _ in range(experts):
            product(4.0)
            t.launch(Kernel("aten add", (each,), "bf16,fp32>fp32", bytes=10.0 * each))
        t.launch(Kernel("aten cat", (n,), "fp32", bytes=8.0 * n))
        t.launch(Kernel("aten copy", (n,), "fp32", bytes=6.0 * n))

    def backward() -> None:
        t.launch(Kernel("aten copy", (n,), layout="strided", bytes=6.0 * n))
        for _ in range(experts):
            t.launch(Kernel("aten copy", (each,), "fp32", bytes=6.0 * each))
            for layout in ("", "outer"):  # the weight's gradient, and the bias's
                product(8.0)
                rows = (each // width, width)
                t.launch(Kernel("aten sum", rows, "fp32", layout, 4.0 * each))
        t.launch(Kernel("aten cat", (n,), bytes=4.0 * n))

    return _eager(t, x, (bias,), forward, backward)


def _eager(
    t: Tape,
    x: Tensor,
    parameters: tuple[Tensor, ...],
    forward: Callable[[], None],
    backward: Callable[[], None],
) -> Tensor:
    """A value as large as ``x`` by kernels of eager operators, which make the parameters' gradients too."""
    t.cpu("fused")
    y = t.empty(x.shape, x.itemsize)
    forward()

    def back(_: Tensor) -> list[Tensor | None]:
        t.cpu("fused_backward")
        backward()
        return [t.empty(one.shape, one.itemsize) for one in (x, *parameters)]

    return t.apply(y, [unsaved(x), *parameters], back)
