"""Measured kernels and collectives side by side: the `overlap` lines of the harness. Predictions: `overlap_run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs.interference import BUNDLED
from prestep.sim.errors import InputError, unknown
from prestep.sim.graph.kernel import PREFIX, Kernel, product
from prestep.validation.formats.records import seconds, whole
from prestep.validation.formats.usual import COLLECTIVES


@dataclass(frozen=True)
class Overlap:
    """One measurement, seconds: each side alone, and each while the other runs back to back.

    `cluster`: name or file; "": the measured host. `skip`: why it cannot be compared.
    """

    kernel: Kernel
    size: int
    compute: float
    comm: float
    compute_beside: float
    comm_beside: float
    op: str = "all_reduce"
    ranks: int = 4
    name: str = ""
    where: str = ""
    cluster: str = ""
    wanted: Nccl = field(default_factory=Nccl)
    skip: str = ""


def read_overlap(record: Mapping[str, Any], where: str) -> Overlap:
    """The measurement of a line. No bundled constant is fitted to one."""
    op, compute = (str(record.get(key, "nothing")) for key in ("op", "compute"))
    if op not in COLLECTIVES:
        raise InputError(unknown(where, "op", op, COLLECTIVES))
    kernel = _kernel(compute, where)
    times = [
        seconds(record, f"{side}_{when}_s", where)
        for when in ("alone", "overlapped")
        for side in ("compute", "comm")
    ]
    size, ranks = whole(record, "bytes", where, 1), whole(record, "ranks", where, 2)
    name = f"overlap/{compute}/{op}/n{ranks}/{size}"
    alone, comm, beside, comm_beside = times
    return Overlap(
        kernel, size, alone, comm, beside, comm_beside, op, ranks, name, where
    )


def _kernel(compute: str, where: str) -> Kernel:
    """The kernel of a name: gemm_8192x8192x8192 (mm of two row-major matrices), or add_2^28_bf16."""
    if shape := re.fullmatch(
        r"gemm_([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", compute
    ):
        return product((int(shape[1]), int(shape[2]), int(shape[3])), layout="nn")
    kind, _, rest = compute.partition("_")
    if not rest or kind == "gemm":
        expected = "gemm_MxNxK, or an elementwise kernel (add_2^28_bf16)"
        raise InputError.of(where, "compute", repr(compute)[:60], expected)
    size = re.match(r"2\^(\d{1,2})(?!\d)|([1-9]\d{0,15})(?!\d)", rest)
    elements = 1 if size is None else 2 ** int(size[1]) if size[1] else int(size[2])
    # Its time is the row's; kind and size say how it disturbs a collective, and is disturbed.
    name = kind if kind in BUNDLED.factor else "add"
    return Kernel(PREFIX + name, (elements,), bytes=6.0 * elements)
