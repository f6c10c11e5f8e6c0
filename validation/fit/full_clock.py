"""Times of matrix products in a trace as they are at the highest clock: without what the power limit cost them.

A step that is long and dense runs its products up to a fifth slower than a short one. Tables of kernels hold the times
at the highest clock; the simulator's meter (sim/costs/power.py) slows them down again as each step wants it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from prestep.sim.costs import gemm
from prestep.sim.costs.power import FILLS_ABOVE, Meter, Power
from prestep.sim.graph.kernel import Kernel
from prestep.validation.formats.kineto_kernels import Call

HALVES = ("_input", "_weight")  # of a norm's backward, which traces hold as a whole too


# GPUs of a model differ in what they draw; where a trace's products say so, its GPU's own power is taken out.
POWERS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5, 1.55, 1.6)


def of_trace(
    calls: list[Call], power: Power | None, expected: Callable[[Kernel], float]
) -> Power | None:
    """The power limit with the product power that explains this trace best: times at full clock are as `expected`.

    `expected` are seconds of a product at full clock by a model of shapes, so one trace cannot have many of its own.
    """
    if power is None:
        return None

    def wrong(product: float) -> float:
        done = at_full_clock(calls, replace(power, product=product))
        pairs = [
            (c.duration, expected(c.kernel))
            for c in done
            if is_product(c) and not c.overlapped
        ]
        return abs(
            sum(math.log(time / model) * time for time, model in pairs)
        ) + 1e-9 * abs(product - power.product)

    return replace(power, product=min(POWERS, key=wrong))


def offset(
    traces: Iterable[list[Call]],
    power: Power | None,
    expected: Callable[[Kernel], float],
) -> float:
    """Mean log of products over `expected`, of those that ran at full clock while the budget lasted."""
    if power is None:
        return 0.0
    total = weight = 0.0
    for calls in traces:
        ordered = sorted(calls, key=lambda call: call.start)
        for before, after in zip(ordered, at_full_clock(calls, power), strict=True):
            if (
                is_product(before)
                and not before.overlapped
                and after.duration == before.duration
            ):
                total += (
                    math.log(before.duration / expected(before.kernel))
                    * before.duration
                )
                weight += before.duration
    return total / weight if weight else 0.0


def at_full_clock(calls: list[Call], power: Power | None) -> list[Call]:
    """The calls of one trace, products shortened to their time at full clock; the budget is whole at its start."""
    if power is None or not calls:
        return calls
    ordered = sorted(calls, key=lambda call: call.start)
    meter, done = Meter(power, start=ordered[0].start), []
    for call in ordered:
        done.append(call)
        if call.kernel.kind.endswith(HALVES):
            continue
        if not is_product(call):
            meter.other(call.start, call.duration)
        else:
            share = meter.free_share(call.start, call.duration)
            done[-1] = replace(call, duration=call.duration * share)
    return done


def is_product(call: Call) -> bool:
    """Whether the clock of a product counts: it fills the GPU."""
    return (
        call.kernel.kind in gemm.KINDS
        and call.kernel.dtype != "fp32"
        and call.duration > FILLS_ABOVE
    )
