"""A few training steps: of the usual models and layouts, or of the cases of a file, with Kineto traces of some."""

from __future__ import annotations

import gc
import gzip
import shutil
import time
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from prestep.validation.formats import usual
from prestep.validation.measure import models, steps
from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.session import described

TITLE, NEEDS, WEIGHT, ORDER = "training steps", "gpu", 130.0, 60
KEPT = ("step_s", "cpu_step_s", "peak_alloc", "peak_reserved")


def measure(session: GroupSession) -> None:
    """Each case: warm-up, steps between CUDA events, then two traced steps where the case wants them."""
    for case in session.items(_listed(session), lambda case: str(case["id"])):
        asked = case.get("_world") or session.world
        if asked != session.world:
            session.skip(
                str(case["id"]), f"wants {asked} GPUs, there are {session.world}"
            )
            continue
        mine = _tried(session, {k: v for k, v in case.items() if not k.startswith("_")})
        _write(session, case, session.gathered(mine))
        gc.collect()
        if session.cuda:
            torch.cuda.empty_cache()
        session.barrier()


def _listed(session: GroupSession) -> list[dict[str, Any]]:
    given = session.spec.get("training")
    if given is not None:
        return [
            case
            for case in given
            if case["id"] in session.cases and case["_label"] == session.label
        ]
    if session.tiny:
        return usual.rehearsal(session.world)

    return usual.usual(
        session.world,
        float(torch.cuda.get_device_properties(session.device).total_memory),
    )


def _tried(session: GroupSession, case: dict[str, Any]) -> dict[str, Any]:
    try:
        return _run(session, case)
    except Exception as error:
        return {"error": described(error)}


def _write(
    session: GroupSession, case: dict[str, Any], found: list[dict[str, Any]]
) -> None:
    """One row of all ranks, as the sets of validation have them."""
    if session.rank != 0:
        return
    row: dict[str, Any] = {
        "id": case["id"],
        "label": session.label,
        "world": session.world,
        "case": {k: v for k, v in case.items() if not k.startswith("_")},
    }
    if case.get("_env") and session.label == "default":
        row["env"] = case["_env"]
    failed = {rank: one["error"] for rank, one in enumerate(found) if "error" in one}
    if failed:
        row |= {"error": next(iter(failed.values())), "failed_ranks": sorted(failed)}
        session.skip(str(case["id"]), row["error"])
    else:
        row |= _by_rank(found)
    session.emit("training", **row)


def _by_rank(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Times and memory of all ranks, and what the first says for all."""
    row: dict[str, Any] = {}
    for key in KEPT:
        values = {str(r): one[key] for r, one in enumerate(found) if key in one}
        row[f"{key}_by_rank"] = values
    row["cpu_step_s_rank0"] = row.pop("cpu_step_s_by_rank").get("0", [])
    return row | {k: v for k, v in found[0].items() if k not in KEPT}


def _run(session: GroupSession, case: dict[str, Any]) -> dict[str, Any]:
    """What one rank measured of a case."""
    begin = time.time()
    models.Block.slow = _spin(session, case.get("slow"))
    step = steps.build(case, session)
    for _ in range(int(case.get("warmup", 4))):
        step.call()
    session.barrier()
    if session.cuda:
        torch.cuda.reset_peak_memory_stats()
    row = _timed(session, step.call, int(case.get("steps", 10))) | _peaks(session)
    row |= step.info
    if step.ddp is not None:
        row["ddp_log"] = _buckets(step.ddp)
    if case.get("trace"):
        _trace(session, case, step.call)
    return {**row, "total_s": time.time() - begin}


def _spin(session: GroupSession, slow: dict[str, Any] | None) -> int:
    """GPU cycles that this rank spins at the start of each block."""
    is_slow = slow and slow["rank"] == session.rank and session.cuda
    return int(slow["cycles"]) if slow and is_slow else 0


def _peaks(session: GroupSession) -> dict[str, int]:
    """Peak memory since the timed steps began, bytes."""
    if not session.cuda:
        return {}
    return {
        "peak_alloc": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


def _buckets(ddp: Any) -> dict[str, Any]:
    """What DDP itself tells of its buckets."""
    log = ddp._get_ddp_logging_data()
    return {key: value for key, value in log.items() if "bucket" in key}


def _timed(session: GroupSession, step: Any, count: int) -> dict[str, Any]:
    """Seconds of each step: of the GPU between events, and of the host to issue it."""
    cpu: list[float] = []
    events = (
        [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        if session.cuda
        else []
    )
    start = time.perf_counter()
    if events:
        events[0].record()
    for i in range(count):
        before = time.perf_counter()
        step()
        if events:
            events[i + 1].record()
        cpu.append(time.perf_counter() - before)
    session.synchronize()
    wall = (time.perf_counter() - start) / count
    times = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)] or list(cpu)
    return {"step_s": times, "cpu_step_s": cpu, "wall_s": wall}


def _trace(session: GroupSession, case: dict[str, Any], step: Any) -> None:
    count = int(case.get("trace_steps", 1))
    name = f"{case['id']}.{session.label}.rank{session.rank}.pt.trace.json"
    path = session.folder / name
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if session.cuda else [])
    with profile(
        activities=kinds,
        schedule=schedule(wait=0, warmup=1, active=count),
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(1 + count):
            step()
            profiler.step()
    session.synchronize()
    wanted = case["trace"]
    if not isinstance(wanted, list) or session.rank in wanted:
        with (
            path.open("rb") as plain,
            gzip.open(session.file(f"traces/{name}.gz"), "wb", 6) as packed,
        ):
            shutil.copyfileobj(plain, packed)
    path.unlink(missing_ok=True)
