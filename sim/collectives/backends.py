"""Which library runs an operation: NCCL, Gloo, or NVSHMEM. Said by a caller or by [nccl] backend, never guessed.

* ``nccl``: everything, as `prestep.sim.collectives.nccl.tuner` chooses.
* ``gloo``: everything, on the CPU over TCP (`prestep.sim.collectives.algorithms.gloo`).
  ``dispatch`` and ``combine`` are exchanges of experts' tokens (`prestep.sim.exchanges`).
* ``nvshmem``: puts and gets that kernels start, and collectives made of puts
  (`prestep.sim.collectives.algorithms.one_sided`). What it
  lacks (reductions) a training step takes from NCCL, and the plan's note says so; `strict` refuses instead.
* ``one_shot``, ``two_shot``: all-reduces of a host (`prestep.sim.collectives.algorithms.shots`); NCCL runs the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prestep.sim.collectives.algorithms import gloo, one_sided, shots
from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.nccl import tuner
from prestep.sim.collectives.plan import OPS, Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, did_you_mean

CREATION = "init"  # the cost of making a communicator: sim/collectives/nccl/creation.py
EXCHANGES = ("dispatch", "combine")  # of experts' tokens


def ops(backend: str) -> tuple[str, ...]:
    """Operations that a backend has by itself."""
    if backend == "nvshmem":
        return (*one_sided.OPS, *one_sided.SAME)
    if backend in shots.NAMES:
        return shots.OPS
    return gloo.OPS if backend == "gloo" else (*OPS, *EXCHANGES, CREATION)


def check(
    backend: str, op: str, where: str = "command line", key: str = "--op"
) -> None:
    """Raises InputError for an operation that a backend does not have."""
    if op not in ops(backend):
        elsewhere = [name for name in ("nccl", "gloo", "nvshmem") if op in ops(name)]
        hint = did_you_mean(op, ops(backend)) or (
            f"--backend {' or '.join(elsewhere)} has it" if elsewhere else ""
        )
        raise InputError.of(
            where, key, f'"{op}"', f"one of {', '.join(ops(backend))} ({backend})", hint
        )


def plan_of(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    settings: Nccl,
    in_place: bool = False,
) -> Plan:
    """The plan of one operation by the settings' backend."""
    if settings.backend == "gloo":
        tuner.check(op, size, len(ranks), gloo.OPS)
        return gloo.plan(call_of(op, size, ranks, fabric, settings))
    if settings.backend == "nvshmem" and op in ops("nvshmem"):
        tuner.check(op, size, len(ranks), ops("nvshmem"))
        return one_sided.plan(call_of(op, size, ranks, fabric, settings))
    notes = _limits(settings)
    if settings.backend in shots.NAMES and op in shots.OPS:
        tuner.check(op, size, len(ranks), shots.OPS)
        call = call_of(op, size, ranks, fabric, settings)
        if not (why := shots.obstacle(call)):
            return shots.plan(call)
        notes.append(f"no {settings.backend}: {why}; NCCL runs it")
    plan = tuner.choose(op, size, ranks, fabric, settings, in_place)
    if settings.backend == "nvshmem":
        notes.append(f"NVSHMEM has no {op} here: NCCL runs it")
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan


def _limits(settings: Nccl) -> list[str]:
    """What NCCL takes for less than was asked for, with a line in its log."""
    most = settings.most_channels
    limits = {
        "min_channels": settings.min_channels,
        "max_channels": settings.max_channels,
    }
    return [
        f"{key} = {value}: NCCL {settings.version} has at most {most} channels"
        for key, value in limits.items()
        if value is not None and value > most
    ]
