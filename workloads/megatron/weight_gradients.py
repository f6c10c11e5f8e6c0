"""Gradients of weights: added up in a buffer, at once or when a schedule that splits backward asks for them."""

from __future__ import annotations

from collections.abc import Callable

from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.gemm import Numbers, gemm, quantized
from prestep.workloads.torch.tape import Tape, Tensor


def weight_gradient(
    t: Tape, n: int, k: int, m: int, o: Numbers, operands: tuple[Tensor, ...] = ()
) -> None:
    """The weight's gradient, added to the buffer that accumulates it; put off, it keeps its operands till then."""
    later(t, lambda: _add_product(t, n, k, m, o), operands, o)


def later(
    t: Tape,
    launch: Callable[[], None],
    operands: tuple[Tensor, ...],
    o: Numbers | None = None,
) -> None:
    """Runs ``launch`` now, or, where weight gradients are put off, when they come; ``operands`` live till then.

    ``o``: how the products that take them compute, where they may be quantized.
    """
    if t.deferred is None:
        launch()
        return
    waiting = operands if o is None else tuple(quantized(t, x, o) for x in operands)

    def put_off(_: tuple[Tensor, ...] = waiting) -> None:
        launch()

    t.deferred.append(put_off)


def _add_product(t: Tape, n: int, k: int, m: int, o: Numbers) -> None:
    """The product of gradients and inputs, and its sum with the buffer where the GEMM does not add."""
    gemm(t, n, k, m, "tn", o)
    moved = float(2 + 2 * o.wide) if o.added is None else o.added
    if not o.fused_accumulation and moved:
        pass_over(t, n * k, n * k * moved)
