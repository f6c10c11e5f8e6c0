"""Clocks and power under load: one product again and again on all GPUs at once, with what nvidia-smi says meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import time

import torch

from prestep.validation.measure.group import GroupSession

TITLE, NEEDS, WEIGHT, ORDER = "clocks and power under load", "gpu", 8.0, 90
ASKED = ("index", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
SIZE = 8192
LONGEST = 20.0  # s
EVERY = 0.2  # s


def measure(session: GroupSession) -> None:
    """Seconds of a product by time since the load began, on every rank; samples of every GPU of a host."""
    seconds = min(0.8 * session.left(), LONGEST) if not session.tiny else 0.05
    sampler = _sampler(session)
    session.barrier()
    begin = time.time()
    try:
        rows = _load(session, begin, seconds)
    finally:
        log = _stop(sampler)
    for at, each in rows:
        product = {"m": SIZE, "n": SIZE, "k": SIZE, "s": each, "gpu": session.rank}
        session.emit("micro", kind="load", at=round(at, 3), **product)
    for line in log:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(ASKED):
            sample = dict(zip(ASKED, cells, strict=True))
            session.emit("micro", kind="clocks", node=session.rank, **sample)


def _load(
    session: GroupSession, begin: float, seconds: float
) -> list[tuple[float, float]]:
    size = SIZE if session.cuda else 64
    a, b, out = (session.randn(size, size, dtype=session.dtype) for _ in range(3))
    rows = []
    torch.mm(a, b, out=out)
    session.synchronize()
    while time.time() - begin < seconds:
        count = 100 if session.cuda else 2
        start = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b, out=out)
        session.synchronize()
        rows.append((time.time() - begin, (time.perf_counter() - start) / count))
    return rows


def _sampler(session: GroupSession) -> subprocess.Popen[str] | None:
    if (
        session.local_rank != 0
        or not session.cuda
        or shutil.which("nvidia-smi") is None
    ):
        return None
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(ASKED)}",
        "--format=csv,noheader,nounits",
    ]
    return subprocess.Popen(
        [*command, f"--loop-ms={int(EVERY * 1000)}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _stop(sampler: subprocess.Popen[str] | None) -> list[str]:
    if sampler is None:
        return []
    sampler.terminate()
    try:
        return sampler.communicate(timeout=5)[0].splitlines()
    except subprocess.TimeoutExpired:
        sampler.kill()
        return []
