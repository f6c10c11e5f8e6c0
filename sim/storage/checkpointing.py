"""Saves in a scenario: what is wrong with them, how long training stands still, what they cost the steps beside."""

from __future__ import annotations

import math
from typing import Any

from sim.engine.execution import Run
from sim.errors import InputError, Mistake
from sim.planning.planned import Planned
from sim.spec.sections import Scenario
from sim.storage.evidence import shares
from sim.storage.saving import Checkpointing
from sim.storage.systems import load_system
from sim.units import format_bytes, format_duration


def mistakes_of(scenario: Scenario) -> list[Mistake]:
    """What is wrong with [checkpoint] before anything is simulated."""
    c, where, found = scenario.checkpoint, scenario.where, []
    try:
        system = load_system(c.storage or "nvme", where, "checkpoint.storage")
    except InputError as error:
        return list(error.mistakes)
    if c.gpudirect and not system.gpudirect:
        hint = "leave gpudirect out: bytes bounce through the host's memory"
        found.append(
            Mistake(
                where, "checkpoint.gpudirect", "true", f"false with {system.name}", hint
            )
        )
    if c.gpudirect and c.mode == "peer":
        found.append(
            Mistake(where, "checkpoint.gpudirect", "true", "false with mode peer")
        )
    if c.writers == "replica0" and c.mode in (None, "rank0"):
        found.append(
            Mistake(
                where,
                "checkpoint.writers",
                "replica0",
                "mode sharded or async",
                "rank 0 writes all",
            )
        )
    return found


def report_of(planned: Planned, run: Run, step: float) -> dict[str, Any]:
    """What [checkpoint] costs, in s and bytes.

    `save_stall`: training stands still; `step_time_beside`: mean of the steps while the background writer works, and
    `background_slowdown` their share over an ordinary step; `time_until_durable`: from the start of the save.

    Raises
    ------
    InputError
        If the storage has no room, cannot be reached, or a save takes longer than the interval.
    """
    made = Checkpointing(planned, run)
    save, asked = made.save(), made.asked
    window = max(0.0, save.end - save.stall) if asked.mode in ("async", "peer") else 0.0
    # Work that the writer costs training: all of it while it holds the host, and a share on links that both use.
    taken = (
        save.host_held
        + max(0.0, window - save.host_held) * (1 - step / made.beside(step))
        if window
        else 0.0
    )
    steps = math.ceil(max(0.0, window - taken) / step)
    beside = step + taken / steps if steps else step
    report: dict[str, Any] = {
        "mode": asked.mode,
        "storage": made.system.name,
        "bytes": made.holds.size,
        "writers": len(made.holds.writers),
        "save_stall": save.stall,
        "background": window,
        "steps_beside": steps,
        "step_time_beside": beside,
        "background_slowdown": beside / step - 1.0,
        "time_until_durable": save.durable,
        "load_time": made.load(),
        "legs": save.legs,
        "rests_on": save.rests_on,
        "evidence": shares(save.rests_on),
    }
    if asked.every is not None:
        extra = save.stall + max(0, min(steps, asked.every)) * (beside - step)
        if asked.every * step < max(save.stall, window):
            found = f"{asked.every} steps, {format_duration(asked.every * step)}"
            busy = format_duration(max(save.stall, window))
            raise InputError(
                Mistake(
                    made.scenario.where,
                    "checkpoint.every",
                    found,
                    f"longer than a save ({busy})",
                    f"every = {math.ceil(max(save.stall, window) / step)} or more, or faster storage",
                )
            )
        report |= {
            "every": asked.every,
            "interval": asked.every * step + extra,
            "step_time_with": step + extra / asked.every,
        }
    return report


def words(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows (what, how much) for people."""
    rows = [
        (
            "to",
            f"{report['storage']}, {format_bytes(report['bytes'])} by {report['writers']} ranks ({report['mode']})",
        ),
        ("training stands still", format_duration(report["save_stall"])),
    ]
    if report["steps_beside"]:
        slower = f"{100 * report['background_slowdown']:.1f} % slower"
        rows.append(
            (
                "steps beside",
                f"{report['steps_beside']} of {format_duration(report['step_time_beside'])}, {slower}",
            )
        )
    rows += [
        ("durable after", format_duration(report["time_until_durable"])),
        ("load", format_duration(report["load_time"])),
    ]
    grades = [
        f"{grade} {100 * share:.0f} %" for grade, share in report["evidence"].items()
    ]
    rows.append(("the save rests on", ", ".join(grades)))
    if "step_time_with" in report:
        rows.append(
            (
                f"every {report['every']} steps",
                f"{format_duration(report['step_time_with'])} a step",
            )
        )
    return rows
