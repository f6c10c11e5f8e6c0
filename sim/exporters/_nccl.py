"""How NCCL's kernels look in a profiler trace: names and the arguments PyTorch adds to them."""

from __future__ import annotations

from typing import Any

from prestep.sim.analysis.timeline import group_ranks
from prestep.workloads.precision import precision as number_format

# (name in a record_param_comms event, kernel, reduces). The suffix RING_LL is what NCCL 2.28's kernels are called
# whatever algorithm and protocol they run (measured: 1b-ddp4-b2 trace on H200).
_OPS = {
    "all_reduce": ("allreduce", "AllReduce", True),
    "all_gather": ("_allgather_base", "AllGather", False),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter", True),
    "broadcast": ("broadcast", "Broadcast", False),
    "reduce": ("reduce", "Reduce", True),
    "all_to_all": ("all_to_allv", "SendRecv", False),
    "sendrecv": ("send", "SendRecv", False),
    "send": ("send", "SendRecv", False),
    "recv": ("recv", "SendRecv", False),
}
BYTES = {"BFloat16": 2, "Half": 2, "Float": 4}


def operation(kind: str, name: str) -> str:
    """The NCCL operation of a span: its name begins with it, or its kind says it; else the name itself."""
    plain = name.replace("-", "_").lower()
    for known in (
        ("sendrecv", "send", "recv") if kind in ("sendrecv", "send", "recv") else ()
    ):
        if kind == known:
            return known
    return next(
        (op for op in sorted(_OPS, key=len, reverse=True) if plain.startswith(op)),
        plain,
    )


def kernel_name(op: str, precision: str) -> str:
    """`all_reduce` -> `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)`."""
    _, kernel, reduces = _OPS.get(op, (op, op, False))
    dtype = number_format(precision).nccl
    how = (
        ""
        if kernel == "SendRecv"
        else f"_Sum_{dtype}_RING_LL"
        if reduces
        else "_RING_LL"
    )
    return f"ncclDevKernel_{kernel}{how}(ncclDevKernelArgsStorage<4096ul>)"


def arguments(
    op: str, size: float, group: str, group_name: str, axis: str, precision: str
) -> dict[str, Any]:
    """The arguments PyTorch writes on a collective; `size` in bytes in the convention of nccl-tests."""
    dtype = number_format(precision).tensor
    itemsize = BYTES[dtype]
    ranks = group_ranks(group)
    count, members = round(size / itemsize), max(1, len(ranks))
    return {
        "Collective name": _OPS.get(op, (op, op, False))[0],
        "In msg nelems": count // members if op == "all_gather" else count,
        "Out msg nelems": count // members if op == "reduce_scatter" else count,
        "Group size": members,
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group_name,
        "Process Group Description": f"mesh_{axis}" if axis else "default_pg",
        "Process Group Ranks": str(list(ranks)),
    }
