"""Rows of kernels of one machine: traces at the level of untraced steps, microbenchmarks at that of traces."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from prestep.sim.costs.corrected import CorrectedGpu, name_of
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.tables import Row
from prestep.sim.costs.terms import group
from prestep.sim.errors import InputError
from prestep.validation.fit.bootstrap import of_ratios
from prestep.validation.fit.kernel_rows import (
    FITTED,
    line,
    merge,
    micro_rows,
    trace_rows,
)
from prestep.validation.fit.measurement import Measured
from prestep.validation.formats.kineto_kernels import Call, read_calls

BROKEN = (KeyError, ValueError, TypeError)
Calls = Mapping[str, Sequence[Call]]


def rows_of(
    measured: Measured, gpu: Gpu, level: float | None
) -> tuple[list[Row], list[str]]:
    """Rows of the traces, and of microbenchmarks where they add shapes; notes on how they were scaled.

    Parameters
    ----------
    level
        Time of kernels here over the known GPU's, by steps that nobody traced (`machine_steps.level`); None: not known.
    """
    calls = {
        path.name.removesuffix(".pt.trace.json.gz"): _calls(measured.name, path)
        for path in measured.traces()
    }
    levelled, notes = at_level(calls, gpu, level)
    traced = [row for row in trace_rows(dict(levelled)) if _known(row, gpu)]
    micro = [row for row in _micro(measured) if _known(row, gpu)]
    scaled, lines = in_steps(traced, micro, gpu) if traced else (micro, [])
    head = f"traces: {len(calls)}, rows of them {len(traced)}"
    return merge(traced, scaled), [head, *notes, *lines]


def at_level(calls: Calls, gpu: Gpu, level: float | None) -> tuple[Calls, list[str]]:
    """Traces as fast as steps are that nobody traces.

    Clocks are lower in a trace: by the profiler, by heat and by the power limit, which the engine counts itself. So a
    trace says how kernels compare, and steps say how fast they are.
    """
    if level is None:
        return calls, []
    done: dict[str, Sequence[Call]] = {}
    notes = [f"level: {level:.3f} of the {gpu.name}'s kernels, by steps without traces"]
    for name, mine in calls.items():
        scale = level / _ratio(mine, gpu)
        done[name] = [replace(call, duration=call.duration * scale) for call in mine]
        notes.append(f"{name}: kernels times {scale:.3f}")
    return done, notes


def _ratio(calls: Sequence[Call], gpu: Gpu) -> float:
    """Time of the calls over that on the known GPU."""
    pairs = [
        (call.duration, time)
        for call in calls
        if not call.overlapped and (time := _seconds(call, gpu))
    ]
    return sum(own for own, _ in pairs) / sum(known for _, known in pairs)


def _seconds(call: Call, gpu: Gpu) -> float:
    try:
        return gpu.duration(call.kernel)
    except InputError:
        return 0.0


def in_steps(
    traced: list[Row], micro: list[Row], gpu: Gpu
) -> tuple[list[Row], list[str]]:
    """Microbenchmarks as they would have been in a step: raw = overhead + factor x what traces and known GPU say.

    The scatter left about that line becomes the rows' noise.
    """
    factors = {
        name: of_ratios(ratios).value for name, ratios in _ratios(traced, gpu).items()
    }
    mine, done, notes = CorrectedGpu(gpu, traced, factors), list[Row](), list[str]()
    for kind in sorted({group(row.kernel)[0] for row in micro}):
        rows = [row for row in micro if group(row.kernel)[0] == kind]
        known = [row for row in rows if name_of(row.kernel) in factors]
        if kind not in FITTED or not known:
            done += rows
            continue
        raw = np.array([row.duration for row in known])
        expected = np.array([mine.duration(row.kernel) for row in known])
        fitted = line(expected, raw)
        notes.append(f"micro {kind}: {fitted}")
        done += [fitted.in_a_step(row) for row in rows]
    return done, notes


def _ratios(rows: Sequence[Row], gpu: Gpu) -> dict[str, list[float]]:
    """Time here over the known GPU's, by table."""
    found: dict[str, list[float]] = {}
    for row in rows:
        ratio = row.duration / gpu.duration(row.kernel)
        found.setdefault(name_of(row.kernel), []).append(ratio)
    return found


def _micro(measured: Measured) -> list[Row]:
    path = measured.file("micro.jsonl")
    return [] if path is None else micro_rows(path)


@lru_cache(maxsize=64)
def _calls(name: str, path: Path) -> Sequence[Call]:
    """Calls of a trace; a file is read once, however often its rows are fitted."""
    try:
        return tuple(read_calls(path))
    except (*BROKEN, StopIteration, OSError, EOFError, zlib.error) as error:
        where, found = f"{name}: {path.name}", repr(error)[:200]
        raise InputError.of(where, "", found, "a Kineto trace") from None


def _known(row: Row, gpu: Gpu) -> bool:
    """Whether prestep can say how long the known GPU takes for it."""
    try:
        return gpu.duration(row.kernel) > 0
    except (InputError, OverflowError):  # sizes that no memory holds
        return False
