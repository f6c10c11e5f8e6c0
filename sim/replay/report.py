"""What a replay prints, writes as JSON and draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import isnan
from statistics import mean
from typing import Any

from prestep.sim.analysis.critical_path import HOST, path_part
from prestep.sim.extras import lazily
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.outputs.words import Schema
from prestep.sim.replay import comparison, stragglers
from prestep.sim.replay.answers import SHARES, breakdown, families, overlap, path
from prestep.sim.replay.outcome import Outcome, StepTime
from prestep.sim.tables import Sheet
from prestep.sim.units import aligned, format_duration, percent

with lazily():  # it knows all that a prediction consists of
    from prestep.sim.outputs import run

# What a step is counted between, by clock.
CLOCKS = {
    "gpu": "ends of its GPU work",
    "host": "the profiler's annotation on the host",
}
TIMES = ("measured", "simulated")


@cache
def _declared() -> dict[str, Schema]:
    """What a replay prints: seconds by rank and step, and what they rest on."""
    return schemas_beside(
        __file__,
        by_step=stragglers.BY_STEP,
        comparison=comparison.SCHEMA,
        critical_path=run.CRITICAL_PATH,
        stragglers=stragglers.SCHEMA,
        measured=lambda o: _on_clock(o, o.clock)["measured"],
        simulated=lambda o: _on_clock(o, o.clock)["simulated"],
        mean=_mean,
        worst=lambda o: None if _mean(o) is None else o.worst,
        clocks=lambda o: {clock: _on_clock(o, clock) for clock in ("host", "gpu")},
        where=lambda o: o.cluster or None,
        breakdown=lambda o: dict(zip(TIMES, breakdown(o), strict=True)),
        families=families,
        overlap=overlap,
        residual=residual,
        path=lambda o: path(o).to_dict(),
        notes=lambda o: dict(sorted(o.notes.items())),
    )


def schema() -> dict[str, Any]:
    """The schema of `prestep replay --json`."""
    return _declared()["replay"]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The JSON of a replay."""
    return _declared()["replayed"].row(outcome)


Times = dict[str, dict[str, float | None]]  # seconds by rank and step


def _on_clock(outcome: Outcome, clock: str) -> dict[str, Times]:
    """Measured and simulated times of all steps."""
    measured, simulated = (
        _by_rank((step, step.on(clock)[side]) for step in outcome.steps)
        for side in (0, 1)
    )
    return {"measured": measured, "simulated": simulated}


def _by_rank(times: Iterable[tuple[StepTime, float]]) -> Times:
    by_rank: Times = {}
    for step, time in times:
        row = by_rank.setdefault(str(step.rank), {})
        row[step.step] = None if isnan(time) else time
    return by_rank


def _error(step: StepTime, clock: str) -> float:
    measured, simulated = step.on(clock)
    return simulated / measured - 1.0 if measured > 0 else 0.0


def _mean(outcome: Outcome) -> float | None:
    """Mean relative error of the steps; None of a changed run, which was not measured."""
    clock = outcome.clock
    measured = [step for step in outcome.steps if step.on(clock)[0] > 0]
    if outcome.changes or not measured:
        return None
    return mean(abs(_error(step, clock)) for step in measured)


def as_text(outcome: Outcome) -> str:
    """The page for people."""
    lines = [*_answer(outcome), *_head(outcome)]
    for sheet in _sheets(outcome):
        table = aligned([sheet.heads, *sheet.rows], left=range(sheet.texts))
        lines += ["", *table, *sheet.notes]
    return "\n".join(lines)


def _answer(outcome: Outcome) -> Iterator[str]:
    """How long the last step takes (JSON's `step_time`), beside what was measured."""
    before, after = outcome.measured_step, outcome.step_time
    if isnan(before):
        return
    yield from _host_bound(outcome)
    measured, simulated = format_duration(before), format_duration(after)
    if outcome.changes:
        gain = percent(after / before - 1.0, True)
        yield f"With the change the last step takes {simulated}, measured {measured} ({gain})."
    else:
        yield f"Replayed, the last step takes {simulated}, measured {measured}."


#: Of the critical path: a step that waits longer for its host has little to gain elsewhere.
HOST_BOUND = 0.9


def _host_bound(outcome: Outcome) -> Iterator[str]:
    """That faster GPUs and links cannot help, where the host is nearly all of the critical path."""
    walked = path(outcome)
    host = sum(part["seconds"] for part in walked.parts() if part["kind"] == HOST)
    if walked.length and host > HOST_BOUND * walked.length:
        waits = f"{format_duration(host)} of {format_duration(walked.length)}"
        yield (
            f"The host decides this step: its own work is {waits} of the critical path, and faster GPUs or links "
            "hardly help; --set cluster.host_factor=0.5 tries a host that is twice as fast."
        )


def sheets(outcome: Outcome) -> tuple[str, list[Sheet], list[str]]:
    """The answer, its tables and what was replayed, for a report."""
    return " ".join(_answer(outcome)), _sheets(outcome), list(_head(outcome))


def _sheets(outcome: Outcome) -> list[Sheet]:
    """The tables that have any rows."""
    notes = [(what, f"{count} x") for what, count in sorted(outcome.notes.items())]
    parts, whole = _parts(outcome), format_duration(path(outcome).length)
    along = f"critical path, {whole} through all ranks", "time", "of the path"
    share, axis, free = "share of the last step", "communication by axis", "if this"
    tables = [
        _steps(outcome),
        Sheet("Where the last step goes", (share, *TIMES), _shares(outcome)),
        Sheet("Communication by axis", (axis, *TIMES), _axes(outcome)),
        Sheet("Critical path of the last step", along, parts),
        Sheet(
            "What would help", (f"{free} took no time", "step", "saved"), _free(outcome)
        ),
        Sheet(
            "What the traces did not say",
            ("what the traces did not say", "times"),
            notes,
        ),
    ]
    return [sheet for sheet in tables if sheet.rows]


Rows = list[tuple[str, ...]]  # names first


def _shares(outcome: Outcome) -> Rows:
    measured, simulated = breakdown(outcome)
    return [
        (name, _time(measured.get(name)), _time(simulated[name])) for name in SHARES
    ]


def _axes(outcome: Outcome) -> Rows:
    sides = overlap(outcome)
    return [
        (
            f"{axis}, {part}",
            _time(sides["measured"].get(axis, {}).get(part)),
            _time(row[part]),
        )
        for axis, row in sides["simulated"].items()
        for part in ("hidden", "exposed")
    ]


def _parts(outcome: Outcome, most: int = 6) -> Rows:
    """The longest parts of the critical path, and the rest together."""
    walked = path(outcome)
    parts = walked.parts()
    rows = [(path_part(part), part["seconds"], part["share"]) for part in parts[:most]]
    if rest := parts[most:]:
        seconds = sum(part["seconds"] for part in rest)
        rows.append((f"{len(rest)} more", seconds, seconds / walked.length))
    return [(name, format_duration(s), percent(share)) for name, s, share in rows]


def _free(outcome: Outcome) -> Rows:
    return [
        (row["free"], format_duration(row["step_time"]), _signed(row["saved"]))
        for row in outcome.free
    ]


def _time(seconds: float | None) -> str:
    return (
        "not recorded"
        if seconds is None or isnan(seconds)
        else format_duration(seconds)
    )


def _head(outcome: Outcome) -> Iterator[str]:
    job = outcome.replay.job
    device = job.device or "an unknown GPU"
    on = f"on {outcome.cluster}" if outcome.cluster else "as recorded"
    ranks = f"{len(job.works)} of {job.world} ranks recorded on {device}"
    yield f"{ranks}; communication {on}"
    for change in outcome.changes:
        yield f"changed: {change}"


def _steps(outcome: Outcome) -> Sheet:
    """Measured and simulated time of every step, and how they differ."""
    rows, clock = list[tuple[str, ...]](), outcome.clock
    for step in outcome.steps:
        measured, simulated = step.on(clock)
        error = "" if isnan(measured) else f"{100 * _error(step, clock):+.2f} %"
        times = _time(measured), format_duration(simulated)
        rows.append((str(step.rank), step.step, *times, error))
    notes = [f"a step is counted between {CLOCKS[clock]} (--clock)"]
    average = _mean(outcome)
    if average is not None:
        worst = f"worst {100 * outcome.worst:.2f} %"
        notes.append(f"mean error {100 * average:.2f} %, {worst}")
    heads = ("rank", "step", *TIMES, "difference")
    return Sheet("Steps", heads, rows, texts=2, notes=notes)


def residual(outcome: Outcome) -> dict[str, float]:
    """Simulated less measured seconds of the last step by phase, and of exposed communication by axis."""
    measured, simulated = breakdown(outcome)
    if not measured:
        return {}
    residuals = {name: simulated[name] - measured[name] for name in SHARES}
    sides = overlap(outcome)
    for axis, row in sides["simulated"].items():
        before = sides["measured"].get(axis, {}).get("exposed", 0.0)
        residuals[f"exposed communication {axis}"] = row["exposed"] - before
    return residuals


def _signed(seconds: float) -> str:
    return f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)
