"""Collectives by operation and size: as NCCL chooses, with forced algorithms and protocols, with few channels.

`bytes` is the nccl-tests size (the whole buffer). `s` is the eager time from call to call, `graph_s` the time inside a
CUDA graph of 20 calls, so without the host; both of the slowest rank, median of three.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.launch import names_of
from prestep.validation.measure.settings import FULL
from prestep.validation.measure.timing import back_to_back

TITLE, NEEDS, WEIGHT, ORDER = "collectives", "gpus", 30.0, 30
GRAPH_UP_TO = 2**22  # larger ones hide their launches
IN_GRAPH = 20
LARGEST = 2**32
# No graph: the other ranks have none of it.
ONE_WAY = ("send_0_1", "send_0_last")


def measure(session: GroupSession) -> None:
    """Sizes from 8 bytes to 4 GiB, every second one of settings other than NCCL's own; or those of a plan."""
    _environment(session)
    for op in session.cases or FULL:
        for size in sizes(session):
            if not session.going():
                session.skip(
                    f"{op} of {size} bytes and what comes after it", "no time left"
                )
                return
            if not one(session, op, size):
                break


def _environment(session: GroupSession) -> None:
    if session.rank == 0:
        version = (
            ".".join(map(str, torch.cuda.nccl.version())) if session.cuda else None
        )
        env = names_of(os.environ, ("NCCL_",))
        about = {"label": session.label, "ranks": session.world, "kind": "env"}
        session.emit("collectives", **about, nccl=version, env=env)


def sizes(session: GroupSession) -> list[int]:
    if session.spec.get("sizes"):
        return [
            min(size, 2**14) if session.tiny else size for size in session.spec["sizes"]
        ]
    if session.tiny:
        return [2**8, 2**14]
    return [
        2**k
        for k in range(3, LARGEST.bit_length(), 1 if session.label == "default" else 2)
    ]


def one(session: GroupSession, op: str, size: int) -> bool:
    """Measures and writes one size; False where memory ends, on any rank."""
    error = ""
    try:
        call = call_of(session, op, size)
    except torch.OutOfMemoryError as failure:
        call, error = None, str(failure)[:80]
    if session.slowest(1.0 if call is None else 0.0):
        session.skip(f"{op} of {size} bytes and more", f"out of memory {error}")
        return False
    times = _times(session, op, size, call)  # type: ignore[arg-type]
    if session.rank == 0:
        about = {"label": session.label, "ranks": session.world, "kind": "collective"}
        session.emit("collectives", **about, op=op, bytes=size, **times)
    return True


def _times(
    session: GroupSession, op: str, size: int, call: Callable[[], Any]
) -> dict[str, Any]:
    count = 20 if size <= 2**24 else (10 if size <= 2**28 else 4)
    for _ in range(3):
        call()
    times = sorted(
        session.slowest(back_to_back(session, call, count)) for _ in range(3)
    )
    row = {"s": times[1], "s_min": times[0], "s_max": times[2], "iters": count}
    if session.cuda and size <= GRAPH_UP_TO and op not in ONE_WAY:
        try:
            row["graph_s"] = _in_graph(session, call)
        except RuntimeError as error:
            return {**row, "graph_error": str(error)[:80]}
    return row


def _in_graph(session: GroupSession, call: Callable[[], Any]) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    graph.replay()
    return sorted(
        session.slowest(back_to_back(session, graph.replay, 2) / IN_GRAPH)
        for _ in range(3)
    )[1]


def call_of(session: GroupSession, op: str, size: int) -> Callable[[], Any]:
    """A call of an operation on buffers of `size` bytes as nccl-tests counts them."""
    dtype = torch.bfloat16 if session.cuda else torch.float16
    count = max(1, size // 2)
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        count = max(session.world, count // session.world * session.world)
    x = torch.ones(count, device=session.device, dtype=dtype)
    if op == "all_reduce":
        return lambda: dist.all_reduce(x)
    if op == "broadcast":
        return lambda: dist.broadcast(x, 0)
    if op == "reduce":
        return lambda: dist.reduce(x, 0)
    if op in ("all_gather", "reduce_scatter"):
        return _of_parts(session, op, x)
    y = torch.empty_like(x)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(y, x)
    return _messages(session, op, x, y)


def _of_parts(session: GroupSession, op: str, x: Any) -> Callable[[], Any]:
    """A gather or scatter between the whole buffer and this rank's part of it."""
    part = torch.ones_like(x[: len(x) // session.world])
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(x, part)
    return lambda: dist.reduce_scatter_tensor(part, x)


def _messages(session: GroupSession, op: str, x: Any, y: Any) -> Callable[[], Any]:
    rank, world = session.rank, session.world
    if op == "sendrecv":

        def around() -> None:
            after, before = (rank + 1) % world, (rank - 1) % world
            both = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
            for request in dist.batch_isend_irecv(both):
                request.wait()

        return around
    last = world - 1 if op == "send_0_last" else 1

    def one_way() -> None:
        if rank == 0:
            dist.send(x, last)
        elif rank == last:
            dist.recv(y, 0)

    return one_way
