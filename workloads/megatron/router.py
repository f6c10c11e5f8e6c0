"""The router of a layer of experts (megatron/core/transformer/moe/router.py, moe_utils.py).

Not modelled: auxiliary losses beyond their passes over the router's scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.gemm import Numbers
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.recomputation import detached
from prestep.workloads.megatron.weight_gradients import weight_gradient
from prestep.workloads.torch.aten_products import multiply_sizes
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
    t.cpu("linear")
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
    t.cpu("linear_backward")
    multiply_sizes(t, tokens, hidden, experts, "nn")
    unquantized = replace(o, products="")
    if gate.requires_grad:
        weight_gradient(t, experts, hidden, tokens, unquantized, (x, scores))


def _pass_scores(t: Tape, scores: Tensor, passes: Sequence[float]) -> None:
    """Elementwise kernels over the scores, each moving so many bytes of one."""
    n = scores.elements
    for moved in passes:
        pass_over(t, n, moved * n)
