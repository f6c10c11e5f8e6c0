"""Collectives by operation and size: as NCCL chooses, with forced algorithms and protocols, with few channels.

`bytes` is the nccl-tests size (the whole buffer). `s` is the eager time from call to call, `graph_s` the time inside a
CUDA graph of 20 calls, so without the host; both of the slowest rank, median of three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from validation.measure import cases
from validation.measure.launch import names_of
from validation.measure.options import Options, Place
from validation.measure.plan import Variant
from validation.measure.session import Session
from validation.measure.timing import back_to_back

TITLE, NEEDS, WEIGHT, ORDER = "collectives", "gpus", 30.0, 30
FULL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "sendrecv",
    "send_0_1",
)
SHORT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
GRAPH_UP_TO = 2**22  # larger ones hide their launches
IN_GRAPH = 20
LARGEST = 2**32
SIMPLE = (
    "send_0_1",
    "send_0_last",
)  # one-way: no graph, the other ranks have none of it


def variants(options: Options, place: Place) -> Sequence[Variant]:
    """As NCCL chooses on all ranks and on two; rings and trees by protocol; 1 to 16 channels."""
    asked = cases.load(options.cases).series if options.cases else ()
    if asked:
        return [
            Variant(
                s.label,
                s.env,
                s.ranks,
                25,
                0.02 * len(s.ops) * len(s.sizes),
                s.ops,
                s.sizes,
            )
            for s in asked
        ]
    found = [Variant(cases=FULL)]
    if options.rehearse:
        return [
            *found,
            Variant(
                "ch2",
                {"NCCL_MAX_NCHANNELS": "2"},
                order=60,
                weight=0.4,
                cases=("all_reduce",),
            ),
        ]
    if place.world > 2:
        found.append(Variant("default", {}, 2, 50, 0.7, FULL))
    for at, algo in enumerate(("Ring", "Tree")):
        for proto in ("Simple", "LL128", "LL"):
            env = {"NCCL_ALGO": f"allreduce:{algo}", "NCCL_PROTO": proto}
            ops = RINGS if algo == "Ring" and proto != "LL128" else ("all_reduce",)
            if (
                place.world > 2 or algo == "Ring"
            ):  # two ranks: a tree is a line there and back
                found.append(Variant(f"{algo}-{proto}", env, None, 60 + at, 0.45, ops))
    if place.nodes == 1 and _sharp(options, place):
        env = {"NCCL_ALGO": "allreduce:NVLS", "NCCL_PROTO": "Simple"}
        found.append(Variant("NVLS-Simple", env, None, 62, 0.45, ("all_reduce",)))
    for at, n in enumerate((8, 2, 4, 1, 16)):
        found.append(
            Variant(
                f"ch{n}", {"NCCL_MAX_NCHANNELS": str(n)}, None, 70 + at, 0.45, SHORT
            )
        )
    return found


def _sharp(options: Options, place: Place) -> bool:
    """Whether NVLink SHARP may be tried: Hopper and later, and nobody said no."""
    from validation.measure.plan import environment

    off = environment(options, Variant()).get("NCCL_NVLS_ENABLE") == "0"
    return not off and bool(place.gpus) and place.gpus[0].get("capability", [0])[0] >= 9


def measure(session: Session) -> None:
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


def _environment(session: Session) -> None:
    import os

    import torch

    if session.rank == 0:
        version = (
            ".".join(map(str, torch.cuda.nccl.version())) if session.cuda else None
        )
        env = names_of(os.environ, ("NCCL_",))
        session.emit(
            "collectives",
            label=session.label,
            ranks=session.world,
            kind="env",
            nccl=version,
            env=env,
        )


def sizes(session: Session) -> list[int]:
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


def one(session: Session, op: str, size: int) -> bool:
    """Measures and writes one size; False where memory ends, on any rank."""
    import torch

    found, error = {}, ""
    try:
        call = call_of(session, op, size)
    except torch.OutOfMemoryError as failure:
        call, error = None, str(failure)[:80]
    if session.slowest(1.0 if call is None else 0.0):
        session.skip(f"{op} of {size} bytes and more", f"out of memory {error}")
        return False
    found = _times(session, op, size, call)  # type: ignore[arg-type]
    if session.rank == 0:
        session.emit(
            "collectives",
            label=session.label,
            ranks=session.world,
            kind="collective",
            op=op,
            bytes=size,
            **found,
        )
    return True


def _times(
    session: Session, op: str, size: int, call: Callable[[], Any]
) -> dict[str, Any]:
    count = 20 if size <= 2**24 else (10 if size <= 2**28 else 4)
    for _ in range(3):
        call()
    times = sorted(
        session.slowest(back_to_back(session, call, count)) for _ in range(3)
    )
    found = {"s": times[1], "s_min": times[0], "s_max": times[2], "iters": count}
    if session.cuda and size <= GRAPH_UP_TO and op not in SIMPLE:
        try:
            found["graph_s"] = _in_graph(session, call)
        except RuntimeError as error:
            return {**found, "graph_error": str(error)[:80]}
    return found


def _in_graph(session: Session, call: Callable[[], Any]) -> float:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    graph.replay()
    return sorted(
        session.slowest(back_to_back(session, graph.replay, 2) / IN_GRAPH)
        for _ in range(3)
    )[1]


def call_of(session: Session, op: str, size: int) -> Callable[[], Any]:
    """A call of an operation on buffers of `size` bytes as nccl-tests counts them."""
    import torch
    import torch.distributed as dist

    world, two = session.world, torch.bfloat16 if session.cuda else torch.float16
    count = max(1, size // 2)
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        count = max(world, count // world * world)
    x = torch.ones(count, device=session.device, dtype=two)
    if op == "all_reduce":
        return lambda: dist.all_reduce(x)
    if op == "broadcast":
        return lambda: dist.broadcast(x, 0)
    if op == "reduce":
        return lambda: dist.reduce(x, 0)
    if op == "all_gather":
        part = torch.ones(count // world, device=session.device, dtype=two)
        return lambda: dist.all_gather_into_tensor(x, part)
    if op == "reduce_scatter":
        part = torch.empty(count // world, device=session.device, dtype=two)
        return lambda: dist.reduce_scatter_tensor(part, x)
    y = torch.empty_like(x)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(y, x)
    return _messages(session, op, x, y)


def _messages(session: Session, op: str, x: Any, y: Any) -> Callable[[], Any]:
    import torch.distributed as dist

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
