"""Which kernel of the cost tables a recorded one is, as far as its operator and shapes tell."""

from __future__ import annotations

import json
import math
from functools import cache

from prestep.sim.graph.kernel import BACKWARD, FUSED_ATTENTION, PREFIX, Kernel, product
from prestep.workloads.traces.collectives import SIZES
from prestep.workloads.traces.work import Op, family

DTYPES = {"c10::bfloat16": "bf16", "c10::half": "fp16", "float": "fp32"}
# Operator -> kind of the cost tables, for those whose slowdown beside communication or work is known by kind.
KINDS = {
    f"aten::{name}": f"{PREFIX}{kind}"
    for kind, names in {
        "_fused_rms_norm": "_fused_rms_norm",
        "_fused_rms_norm_backward": "_fused_rms_norm_backward",
        "native_layer_norm": "native_layer_norm",
        "native_layer_norm_backward": "native_layer_norm_backward",
        "add": "add add_",
        "sub": "sub",
        "mul": "mul mul_",
        "silu": "silu",
        "silu_backward": "silu_backward",
        "fill": "fill_ zero_",
    }.items()
    for name in names.split()
}
SPIN = "spin"  # what a straggler is made with: it runs on one SM and disturbs nobody
GEMMS = {"aten::mm": 0, "aten::addmm": 1}


def kernel_of(op: Op) -> Kernel:
    """Kind and shape; the kernel's family where the tables have no such kind."""
    return _kernel(
        op.name,
        op.operator,
        op.shape if op.operator in GEMMS or op.operator in KINDS else "",
        op.dtype,
    )


@cache
def _kernel(name: str, operator: str, shape: str, dtype: str) -> Kernel:
    if name == SPIN:
        return Kernel(SPIN, ())
    if operator in GEMMS and family(name) == "gemm":
        found = _gemm(operator, shape, dtype)
        if found is not None:
            return found
    if family(name) == "attention":
        backward = "backward" in operator or "bwd" in name
        return Kernel(FUSED_ATTENTION["cudnn"] + BACKWARD * backward, ())
    if operator in KINDS:
        return Kernel(KINDS[operator], ())
    return Kernel(
        {"copy": "memset" if "Memset" in name else "copy", "gemm": "aten mm"}.get(
            family(name), family(name)
        ),
        (),
    )


def _gemm(operator: str, shape: str, dtype: str) -> Kernel | None:
    try:
        dims, types = json.loads(shape), json.loads(dtype)
        (m, k), (k2, n) = dims[GEMMS[operator] : GEMMS[operator] + 2]
        if not all(isinstance(size, int) for size in (m, k, k2, n)):
            return None
        return (
            product((m, n, k), DTYPES.get(str(types[0]).lower(), "bf16"))
            if k == k2
            else None
        )
    except (ValueError, TypeError, IndexError, KeyError):
        return None


def elements(shape: str) -> int:
    """Elements of the first input of an operator."""
    try:
        dims = json.loads(shape)
        return math.prod(dims[0]) if dims and dims[0] else 0
    except (ValueError, TypeError, KeyError, IndexError):
        return 0


def size(shape: str, dtype: str) -> float:
    """Bytes of the first input of an operator."""
    try:
        types = json.loads(dtype)
        return float(elements(shape) * SIZES.get(str(types[0]).lower(), 4))
    except (ValueError, TypeError, KeyError, IndexError):
        return 0.0
