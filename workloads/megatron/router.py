"""The router of a layer of experts (megatron/core/transformer/moe/router.py, moe_utils.py).

Not modelled: auxiliary losses beyond their passes over the router's scores.
"""

from __future__ import annotations

from dataclasses import replace

from workloads.megatron.elementwise import pass_over
from workloads.megatron.gemm import Numbers
from workloads.megatron.linear import gradient_of
from workloads.megatron.recomputation import detached
from workloads.megatron.weight_gradients import weight_gradient
from workloads.torch.functional import launch_gemm
from workloads.torch.tape import Tape, Tensor

# Passes over the router's scores: softmax or sigmoid, top-k, two scatters, counts, auxiliary loss
# (topk_softmax_with_capacity, switch_load_balancing_loss_func), each reading or writing fp32.
FORWARD_PASSES, BACKWARD_PASSES = 8, 6


def route(t: Tape, x: Tensor, gate: Tensor, o: Numbers) -> Tensor:
    """Scores of all experts, and the choice among them; the input goes on to the experts chosen."""
    experts, hidden = gate.shape
    tokens = x.elements // hidden
    t.cpu("linear")
    launch_gemm(t, "gemm", tokens, experts, hidden, "nt")
    scores = t.empty((tokens, experts), 4)
    t.cpu("elementwise", FORWARD_PASSES)
    _pass_scores(t, scores, FORWARD_PASSES)

    def backward(g: Tensor) -> list[Tensor | None]:
        _gate_gradients(t, x, gate, scores, o)
        # Beside the gradient from the experts.
        pass_over(t, g.elements, 3.0 * g.size)
        return [t.empty(x.shape, x.itemsize), gradient_of(gate)]

    return t.apply(detached(x), [x, gate], backward)


def _gate_gradients(
    t: Tape, x: Tensor, gate: Tensor, scores: Tensor, o: Numbers
) -> None:
    """What the scores' gradients make of those of the input and of the gate, which is never quantized."""
    tokens, experts = scores.shape
    hidden = x.shape[-1]
    t.cpu("elementwise_backward", BACKWARD_PASSES)
    _pass_scores(t, scores, BACKWARD_PASSES)
    t.cpu("linear_backward")
    launch_gemm(t, "gemm", tokens, hidden, experts, "nn")
    unquantized = replace(o, products="")
    if gate.requires_grad:
        weight_gradient(t, experts, hidden, tokens, unquantized, (x, scores))


def _pass_scores(t: Tape, scores: Tensor, times: int) -> None:
    """Elementwise kernels over the scores."""
    n = scores.elements
    for _ in range(times):
        pass_over(t, n, 8.0 * n)
