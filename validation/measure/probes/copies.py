"""Copies: between host and GPU (pinned and not), on the GPU, between GPUs, and all GPUs from the host at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import Bench, Case, back_to_back
from prestep.workloads.operation import words

TITLE, NEEDS, WEIGHT, ORDER = "copies", "gpu", 10.0, 11
ALONE = words(
    "h2d_pinned d2h_pinned h2d_pageable d2h_pageable d2d p2p_write p2p_read p2p_bidir"
)


def measure(session: GroupSession) -> None:
    """Rank 0's copies while the others are idle, then copies of all ranks of a host at the same time."""
    if session.rank == 0:
        Bench(session, 0.008).rows("copy", _alone(session), need=0.5)
    session.wait()
    for mode in ("h2d_all", "d2h_all"):
        for size in (2**16,) if session.tiny else (2**24, 2**28):
            if not session.going(0.3):
                return
            call = _copy(session, f"{mode[:3]}_pinned", size)
            time = session.slowest(back_to_back(session, call, 5))
            if session.rank == 0:
                row = {"gpus": session.local_world, "bytes": size, "s": time}
                session.emit("micro", kind="copy", mode=mode, **row)


def _alone(session: GroupSession) -> Iterator[Case]:
    """Copies of one GPU, as far as the machine can make them."""
    for mode in ALONE:
        if mode.startswith("p2p") and (why := _no_peer(session)):
            session.skip(mode, why)
            continue
        for size in _sizes(session, mode):
            cells = {"kind": "copy", "mode": mode, "bytes": size}
            yield Case(f"{mode} {size}", partial(_copy, session, mode, size), cells)


def _sizes(session: GroupSession, mode: str) -> list[int]:
    if session.tiny:
        return [2**12, 2**16]
    return [2**k for k in range(12, 31, 2 if "pageable" not in mode else 4)]


def _no_peer(session: GroupSession) -> str:
    if not session.cuda:
        return "no GPU"

    if torch.cuda.device_count() < 2:
        return "needs 2 GPUs that one process sees"
    return "" if torch.cuda.can_device_access_peer(0, 1) else "GPU 0 cannot reach GPU 1"


def _copy(session: GroupSession, mode: str, size: int) -> Callable[[], Any]:
    here = torch.empty(size, dtype=torch.uint8, device=session.device)
    if mode == "d2d":
        other = torch.empty_like(here)
        return lambda: other.copy_(here)
    if mode[:3] in ("h2d", "d2h"):
        host = torch.empty(
            size, dtype=torch.uint8, pin_memory=session.cuda and "pinned" in mode
        )
        to, start = (here, host) if mode.startswith("h2d") else (host, here)
        return lambda: to.copy_(start, non_blocking=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda:1")
    if mode == "p2p_write":
        return lambda: there.copy_(here, non_blocking=True)
    if mode == "p2p_read":
        return lambda: here.copy_(there, non_blocking=True)
    return _both_ways(here, there)


def _both_ways(here: Any, there: Any) -> Callable[[], None]:
    back, forth = torch.empty_like(here), torch.empty_like(there)
    one, two = torch.cuda.Stream(0), torch.cuda.Stream(0)

    def call() -> None:
        current = torch.cuda.current_stream()
        one.wait_stream(current)
        two.wait_stream(current)
        with torch.cuda.stream(one):
            forth.copy_(here, non_blocking=True)
        with torch.cuda.stream(two):
            back.copy_(there, non_blocking=True)
        current.wait_stream(one)
        current.wait_stream(two)

    return call
