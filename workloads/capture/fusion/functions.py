"""Functions of elements that take arithmetic, by operation; names as in `prestep.sim.costs.generated`."""

from __future__ import annotations

from prestep.workloads.capture.fusion.graph import Space
from prestep.workloads.capture.operation import Operation

#: Longest rows that Inductor reduces in one go; it loops over longer ones (torch._inductor: persistent reductions).
PERSISTENT = 1024
OF_ELEMENTS = {
    "sin": ("sin",),
    "cos": ("cos",),
    "erf": ("erf",),
    "native_dropout": ("random",),
    "bernoulli": ("random",),
    "rand": ("random",),
    "rand_like": ("random",),
    "randn": ("random",),
    "randn_like": ("random",),
}
GELU = {"gelu": ("erf", "tanhgelu"), "gelu_backward": ("erfgrad", "tanhgelugrad")}
#: Of looped rows: what a statistic takes, and the operation over elements after it.
OF_ROWS = {
    "_softmax": ("rowmax",),
    "_log_softmax": ("rowmax",),
    "native_layer_norm": ("welford",),
}
AFTER_ROWS = {"_softmax": ("rowexp",), "_log_softmax_backward_data": ("rowexp",)}


def of_elements(name: str, operation: Operation) -> tuple[str, ...]:
    """What an operation over elements evaluates once for each."""
    if name in GELU:
        exact, by_tanh = GELU[name]
        values = (*operation.arguments, *dict(operation.options).values())
        return (by_tanh,) if "tanh" in values else (exact,)
    return OF_ELEMENTS.get(name, ())


def of_rows(name: str, rows: Space) -> tuple[str, ...]:
    """What a statistic of rows evaluates for each element."""
    return OF_ROWS.get(name, ()) if _looped(rows) else ()


def after_rows(name: str, rows: Space) -> tuple[str, ...]:
    """What the operation over elements that follows a statistic evaluates."""
    return AFTER_ROWS.get(name, ()) if _looped(rows) else ()


def _looped(rows: Space) -> bool:
    return not rows.across and rows.rows > 0 and rows.elements / rows.rows > PERSISTENT
