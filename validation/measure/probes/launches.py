"""What it costs to start kernels: eager, in a graph, and whole operations of PyTorch; and to wait for the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import of

TITLE, NEEDS, WEIGHT, ORDER = "launches", "gpu", 4.0, 10
REPEATS = 5


def measure(session: GroupSession) -> None:
    """Host seconds a call (`cpu_s`) and with the GPU's work (`total_s`): of rank 0 alone, then of all ranks."""
    if session.cuda:
        _device(session)
    x, operations = torch.zeros(1, device=session.device), _operations(session)
    if session.rank == 0:
        for count in (20, 50) if session.tiny else (200, 2000):
            _row(session, "eager", lambda: x.add_(1), count)
        for name, call in operations.items():
            _row(session, name, call, 20 if session.tiny else 300)
        if session.cuda:
            _graph(session, x)
            _row(session, "synchronize", torch.cuda.synchronize, 200)
    for name in ("linear", "linear_sum_backward") if session.world > 1 else ():
        session.wait()
        count = 20 if session.tiny else 1000
        _row(session, f"{name}_all_ranks", operations[name], count)


def _device(session: GroupSession) -> None:
    """A row of the GPU itself."""
    device: Any = torch.cuda.get_device_properties(session.device)
    facts = {"name": device.name, "sms": device.multi_processor_count}
    facts |= {"mem": device.total_memory, "l2": getattr(device, "L2_cache_size", None)}
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    session.emit("micro", kind="device", gpu=session.rank, **facts, **versions)


def _operations(session: GroupSession) -> dict[str, Callable[[], Any]]:
    """Operations of tiny sizes: their time is the host's."""
    dtype = session.dtype
    x = session.randn(8, 256, dtype=dtype)
    layer = torch.nn.Linear(256, 256, bias=False, device=session.device, dtype=dtype)
    weight = torch.ones(256, device=session.device, dtype=dtype, requires_grad=True)
    y = session.randn(8, 256, dtype=dtype, requires_grad=True)

    def backward() -> None:
        layer(y).sum().backward()

    def no_grad() -> None:
        with torch.no_grad():
            layer(x)

    return {
        "empty": lambda: torch.empty(8, device=session.device),
        "view": lambda: x.view(256, 8),
        "linear": lambda: layer(y),
        "linear_no_grad": no_grad,
        "rms_norm": lambda: F.rms_norm(y, (256,), weight),
        "silu": lambda: F.silu(y),
        "linear_sum_backward": backward,
    }


def _row(session: GroupSession, mode: str, call: Callable[[], Any], count: int) -> None:
    call()
    cpu, total = [], []
    for _ in range(REPEATS):
        session.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        launched = time.perf_counter()
        session.synchronize()
        cpu.append((launched - begin) / count)
        total.append((time.perf_counter() - begin) / count)
    times = {"cpu_s": of(cpu).s, "total_s": of(total).s, "cpu_s_min": min(cpu)}
    session.emit("micro", kind="launch", mode=mode, n=count, **times, rank=session.rank)


def _graph(session: GroupSession, x: Any) -> None:
    graph, count = torch.cuda.CUDAGraph(), 1000
    with torch.cuda.graph(graph):
        for _ in range(count):
            x.add_(1)
    graph.replay()
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        graph.replay()
        launched = time.perf_counter()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / count)
    seconds = {"total_s": of(times).s, "cpu_s": launched - begin}
    session.emit("micro", kind="launch", mode="graph", n=count, **seconds)
