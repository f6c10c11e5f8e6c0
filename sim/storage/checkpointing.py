"""The section [checkpoint] in a prediction: how long training stands still, and what saves cost the steps beside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim.analysis.timeline import SAVE, WRITER, Timeline
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.planning.planned import Planned
from prestep.sim.storage.evidence import shares
from prestep.sim.storage.saving import Checkpointing, Save, Work
from prestep.sim.storage.sections import Checkpoint
from prestep.sim.storage.systems import load_system
from prestep.sim.units import format_bytes, format_duration

TITLE = "Checkpoint"


def mistakes_of(c: Checkpoint, where: str) -> list[Mistake]:
    """The keys of [checkpoint] that do not fit each other or the storage."""
    try:
        system = load_system(c.storage or "nvme", where, "checkpoint.storage")
    except InputError as error:
        return list(error.mistakes)
    mistakes = []
    if c.gpudirect and not system.gpudirect:
        key, expected = "checkpoint.gpudirect", f"false with {system.name}"
        hint = "leave gpudirect out: bytes bounce through the host's memory"
        mistakes.append(Mistake(where, key, "true", expected, hint))
    if c.gpudirect and c.mode == "peer":
        key, expected = "checkpoint.gpudirect", "false with mode peer"
        mistakes.append(Mistake(where, key, "true", expected))
    if c.writers == "replica0" and c.mode in (None, "rank0"):
        key, expected = "checkpoint.writers", "mode sharded or async"
        hint = "rank 0 writes all"
        mistakes.append(Mistake(where, key, "replica0", expected, hint))
    return mistakes


def follow(
    planned: Planned,
    run: Run,
    saves: Checkpoint,
    breakdown: Mapping[str, float],
    step: float,
) -> tuple[dict[str, Any], Timeline]:
    """What [checkpoint] costs after steps of `step` seconds, and the spans of the save that follows the last one."""
    table, save = report_of(planned, saves, run, step)
    table["saving_step"] = saving_step(table, breakdown, step)
    graph = planned.graph
    represents = {p.rank: graph.represents[p.rank] for p in graph.programs}
    # Training saves when all ranks have done all of the step.
    end = max(float(times.max()) for times in run.end)
    return table, spans_of(save, represents, end, run.steps - 1)


def rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What [checkpoint] costs, as rows for people."""
    return [*_rows_of_save(report), *_rows_of_later(report)]


def _rows_of_save(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The first save, and the steps beside it."""
    size = f"{format_bytes(report['bytes'])} by {report['writers']} ranks"
    yield "to", f"{report['storage']}, {size} ({report['mode']})"
    yield "training stands still", format_duration(report["save_stall"])
    saving = report["saving_step"]
    step, without = (
        format_duration(saving[key]) for key in ("step_time", "step_time_without")
    )
    yield "step that saves", f"{step}, {without} without the save"
    if count := report["steps_beside"]:
        beside = format_duration(report["step_time_beside"])
        slower = f"{100 * report['background_slowdown']:.1f} % slower"
        yield "steps beside", f"{count} of {beside}, {slower}"
    yield "durable after", format_duration(report["time_until_durable"])


def _rows_of_later(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Later saves, loading, and the mean step with all of it."""
    again = report["later"]["save_stall"]
    if again < report["save_stall"]:
        yield "later saves stall", format_duration(again)
    yield "load", format_duration(report["load_time"])
    shares = report["evidence"].items()
    grades = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares)
    yield "the save rests on", grades
    if "step_time_with" in report:
        step = format_duration(report["step_time_with"])
        yield f"every {report['every']} steps", f"{step} a step"


SCHEMA = schemas_beside(__file__)["schema"]


def report_of(
    planned: Planned, saves: Checkpoint, run: Run, step: float
) -> tuple[dict[str, Any], Save]:
    """What [checkpoint] costs, in s and bytes, and the first save.

    `save_stall`: training stands still; `step_time_beside`: mean of the steps while the background writer works, and
    `background_slowdown` their share over an ordinary step; `time_until_durable`: from the start of the save. All of it
    is the job's first save; `later` has what another one costs, of which the time of an interval is made.

    Raises
    ------
    InputError
        If the storage has no room, cannot be reached, or a save takes longer than the interval.
    """
    checkpointing = Checkpointing(planned, saves, run, step)
    save = checkpointing.save()
    background = _background(checkpointing, save, step)
    again = Checkpointing(planned, saves, run, step, first=False)
    later = again.save()
    beside = _background(again, later, step)
    report: dict[str, Any] = {
        "mode": checkpointing.asked.mode,
        "storage": checkpointing.system.name,
        "bytes": checkpointing.holds.size,
        "writers": len(checkpointing.holds.writers),
        **_costs(save, background),
        "background_slowdown": background.step / step - 1.0,
        "load_time": checkpointing.load(),
        "legs": save.legs,
        "rests_on": save.rests_on,
        "evidence": shares(save.rests_on),
        "later": _costs(later, beside),
    }
    every = checkpointing.asked.every
    if every is None:
        return report, save
    interval = _interval(planned.job.where, every, later, beside, step)
    return report | interval, save


def _costs(save: Save, background: _Background) -> dict[str, Any]:
    """What one save costs: seconds, and steps beside it."""
    return {
        "save_stall": save.stall,
        "background": background.window,
        "steps_beside": background.steps,
        "step_time_beside": background.step,
        "time_until_durable": save.durable,
    }


def saving_step(
    table: Mapping[str, Any], breakdown: Mapping[str, float], step: float
) -> dict[str, Any]:
    """The step that saves, in s: the foreground of the save comes after what the step does, and is its `io`.

    `breakdown` is that of a step of `step` seconds without a save.

    Examples
    --------
    >>> table = {"save_stall": 2.0, "background": 5.0}
    >>> saving_step(table, {"compute": 1.0}, 1.0)["breakdown"]
    {'compute': 1.0, 'io': 2.0}
    """
    stall = table["save_stall"]
    return {
        "step_time": step + stall,
        "step_time_without": step,
        "foreground": stall,
        "background": table["background"],
        "breakdown": {**breakdown, "io": breakdown.get("io", 0.0) + stall},
    }


@dataclass(frozen=True)
class _Background:
    """The writer beside training: seconds that it works, steps meanwhile, and their mean step time (s)."""

    window: float
    steps: int
    step: float


def _background(checkpointing: Checkpointing, save: Save, step: float) -> _Background:
    """What goes on beside training after a save has let it go on."""
    if checkpointing.asked.mode not in ("async", "peer"):
        return _Background(0.0, 0, step)
    window = max(0.0, save.end - save.stall)
    # Work that the writer costs training: all of it while it holds the host, and a share on links that both use.
    taken = 0.0
    if window:
        shared = max(0.0, window - save.host_held)
        taken = save.host_held + shared * (1 - step / checkpointing.beside(step))
    steps = math.ceil(max(0.0, window - taken) / step)
    return _Background(window, steps, step + taken / steps if steps else step)


def _interval(
    where: str, every: int, save: Save, background: _Background, step: float
) -> dict[str, Any]:
    """The time between two saves, and the mean of its steps with all that saving costs."""
    busy = max(save.stall, background.window)
    if every * step < busy:
        found = f"{every} steps, {format_duration(every * step)}"
        expected = f"longer than a save ({format_duration(busy)})"
        hint = f"every = {math.ceil(busy / step)} or more, or faster storage"
        raise InputError.of(where, "checkpoint.every", found, expected, hint)
    slower = max(0, min(background.steps, every)) * (background.step - step)
    extra = save.stall + slower
    return {
        "every": every,
        "interval": every * step + extra,
        "io_per_step": save.stall / every,
        "step_time_with": step + extra / every,
    }


WAIT = "wait for the checkpoint"


def spans_of(
    save: Save, represents: Mapping[int, Sequence[int]], begin: float, step: int
) -> Timeline:
    """The spans of a save for every simulated rank.

    Parameters
    ----------
    represents
        The ranks that each simulated one stands for.
    begin
        Seconds of the run at which the step before the save has ended on all ranks.
    step
        Number of that step.

    Examples
    --------
    >>> copied = Work("copy", 0.0, 2.0, 8e9, True)
    >>> save = Save(2.0, 2.0, 2.0, 0.0, {}, [], {0: (copied,)}, (0,))
    >>> spans_of(save, {0: (0,), 1: (1,)}, 5.0, 2)["name"].tolist()
    ['checkpoint copy', 'wait for the checkpoint']
    """
    rows = [
        (rank, work)
        for rank, members in represents.items()
        for work in _works_of(save, members)
    ]
    return Timeline.build(
        rank=[rank for rank, _ in rows],
        stream=[SAVE if work.blocks else WRITER for _, work in rows],
        kind="host",  # its thread waits for the copy, and a stream of its own would pass for one of the step
        name=[
            work.name if work.name == WAIT else f"checkpoint {work.name}"
            for _, work in rows
        ],
        phase="checkpoint",
        step=step,
        start=[begin + work.start for _, work in rows],
        end=[begin + work.end for _, work in rows],
        bytes=[work.size for _, work in rows],
    )


def _works_of(save: Save, members: Sequence[int]) -> Iterator[Work]:
    """What ranks that are alike do: they write, and wait until the last one lets training go on."""
    works: Sequence[Work] = ()
    if any(rank in save.writers for rank in members):
        # Of many hosts only the first one's writers are simulated: others do the same.
        simulated = [rank for rank in members if rank in save.works]
        works = save.works[simulated[0] if simulated else next(iter(save.works))]
    yield from (work for work in works if work.end > work.start)
    blocked = max([0.0, *(work.end for work in works if work.blocks)])
    if save.stall > blocked:
        yield Work(WAIT, blocked, save.stall, 0.0, True)
