"""A kernel and a collective side by side: each alone, and each while the other runs back to back on another stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.probes.collectives import call_of
from prestep.validation.measure.timing import back_to_back

TITLE, NEEDS, WEIGHT, ORDER = "overlap", "gpus", 22.0, 40
SHAPES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (8192, 14336, 4096),
    (2048, 8192, 2048),
    (16384, 3072, 3072),
)
SIZES = (2**22, 2**25, 2**28)
OTHERS = ("all_gather", "reduce_scatter")  # at the middle size
Call = Callable[[], Any]


def measure(session: GroupSession) -> None:
    """Products and a sum beside all-reduces of three sizes, gathers and scatters of one."""
    if not session.cuda:
        session.skip("overlap", "needs streams of a GPU")
        return
    # A shape's tensors stay until another shape is next.
    kernels: dict[Any, tuple[str, Call]] = {}
    for shape, op, size in session.items(
        _cases(), lambda case: " ".join(map(str, case))
    ):
        if shape not in kernels:
            kernels.clear()
            kernels[shape] = _kernel(session, shape)
        name, compute = kernels[shape]
        row = _side_by_side(session, compute, call_of(session, op, size))
        if session.rank == 0:
            about = {"label": session.label, "ranks": session.world, "compute": name}
            about |= {"op": op, "bytes": size}
            session.emit("collectives", kind="overlap", **about, **row)


def _cases() -> list[tuple[tuple[int, int, int] | None, str, int]]:
    """Shape of the product (None: a sum), operation and bytes, the middle size first."""
    return [
        (shape, op, size)
        for size in (SIZES[1], SIZES[2], SIZES[0])
        for shape in (*SHAPES, None)
        for op in ("all_reduce", *(OTHERS if size == SIZES[1] and shape else ()))
    ]


def _kernel(
    session: GroupSession, shape: tuple[int, int, int] | None
) -> tuple[str, Call]:
    if shape is None:
        x, y = session.randn(2**28), session.randn(2**28)
        return "add_2^28_bf16", lambda: x.add_(y)
    m, n, k = shape
    a, b, out = session.randn(m, k), session.randn(k, n), session.randn(m, n)
    return f"gemm_{m}x{n}x{k}", lambda: torch.mm(a, b, out=out)


def _side_by_side(session: GroupSession, compute: Call, comm: Call) -> dict[str, float]:
    for _ in range(3):
        comm()
        compute()
    alone = session.slowest(back_to_back(session, compute, 20))
    comm_alone = session.slowest(back_to_back(session, comm, 10))
    # One side has so much to do that it is surely at work all the time that the other one is timed.
    comms, kernels = max(4, int(0.03 / comm_alone)), max(4, int(0.02 / alone))
    _both(session, compute, comm, kernels, comms * 2)
    beside = session.slowest(_both(session, compute, comm, kernels, comms * 2)[0])
    kernels, comms = int(0.06 / alone) + 8, max(4, int(0.02 / comm_alone))
    comm_beside = session.slowest(_both(session, compute, comm, kernels, comms)[1])
    return {
        "compute_alone_s": alone,
        "comm_alone_s": comm_alone,
        "compute_overlapped_s": beside,
        "comm_overlapped_s": comm_beside,
    }


def _both(
    session: GroupSession, compute: Call, comm: Call, kernels: int, comms: int
) -> tuple[float, float]:
    """Seconds of a kernel and of a collective with this many of each queued on two streams."""
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    session.barrier()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    with torch.cuda.stream(two):
        events[0].record()
        for _ in range(comms):
            comm()
        events[1].record()
    with torch.cuda.stream(one):
        events[2].record()
        for _ in range(kernels):
            compute()
        events[3].record()
    torch.cuda.synchronize()
    kernel = events[2].elapsed_time(events[3]) * 1e-3 / kernels
    return kernel, events[0].elapsed_time(events[1]) * 1e-3 / comms
