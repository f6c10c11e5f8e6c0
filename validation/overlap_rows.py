"""Measured kernels and collectives side by side: the `overlap` lines of the harness. Predictions: `overlap_run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.costs.kernel import Kernel
from sim.errors import InputError, Mistake, unknown

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "sendrecv")


@dataclass(frozen=True)
class Overlap:
    """One measurement, seconds: each side alone, and each while the other runs back to back."""

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


def read_overlap(record: Mapping[str, Any], where: str) -> Overlap:
    """The measurement of a line. No constant is fitted to one."""
    from validation.collective_rows import seconds, whole

    op, compute = str(record.get("op", "nothing")), str(record.get("compute", "nothing"))
    if op not in OPS:
        raise InputError(unknown(where, "op", op, OPS))
    shape = re.fullmatch(r"gemm_(\d+)x(\d+)x(\d+)", compute)
    if shape is None and "_" not in compute:
        raise InputError(
            Mistake(where, "compute", repr(compute), "gemm_MxNxK, or an elementwise kernel (add_2^28_bf16)")
        )
    # mm of two row-major matrices. How large an elementwise kernel is does not matter: its time is the row's.
    kernel = (
        Kernel("gemm", (int(shape[1]), int(shape[2]), int(shape[3])), layout="nn") if shape else Kernel("add", (1,))
    )
    times = (seconds(record, f"{side}_s", where) for side in
             ("compute_alone", "comm_alone", "compute_overlapped", "comm_overlapped"))  # fmt: skip
    size, ranks = whole(record, "bytes", where, 1), whole(record, "ranks", where, 2)
    alone, comm, beside, comm_beside = times
    name = f"overlap/{compute}/{op}/n{ranks}/{size}"
    return Overlap(kernel, size, alone, comm, beside, comm_beside, op, ranks, name, where)
