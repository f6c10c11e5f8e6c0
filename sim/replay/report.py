"""What a replay prints, writes as JSON and draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import isnan
from statistics import mean
from typing import Any

from prestep.sim.analysis.critical_path import HOST, path_part
from prestep.sim.exporters._sheets import Sheet
from prestep.sim.extras import lazily
from prestep.sim.outputs import words
from prestep.sim.replay import comparison, stragglers
from prestep.sim.replay.answers import SHARES, breakdown, families, overlap, path
from prestep.sim.replay.outcome import Outcome, StepTime
from prestep.sim.units import format_duration, percent

with lazily():  # it knows all that a prediction consists of
    from prestep.sim.outputs import run

# What a step is counted between, by clock.
CLOCKS = {
    "gpu": "ends of its GPU work",
    "host": "the profiler's annotation on the host",
}
TIMES = ("measured", "simulated")

_TIMES = words.named(stragglers.BY_STEP, "rank -> step -> s")
_BOTH = words.table("", measured=_TIMES, simulated=_TIMES)
_SHARES = words.table("", **words.each(comparison.TIME_BY_SHARE, *TIMES))


def _of(schema: words.Schema, source: words.Source) -> words.Schema:
    """The same with the place that its value comes from."""
    return words.Schema(schema, schema.json, source)


@cache
def _replayed() -> words.Schema:
    """What a replay prints: seconds by rank and step, and what they rest on."""
    name = words.text()
    error = words.number("share; null: something was changed", _mean)
    worst = words.number("share", lambda o: None if _mean(o) is None else o.worst)
    saved = words.table(
        "", free=name, **words.each(words.SECONDS, "step_time", "saved")
    )
    dropped = words.table(
        "", rank=words.whole(), **words.each(name, "what", "why"), count=words.whole()
    )
    return words.table(
        "as it was, or with changes",
        measured_step_time=_of(_TIMES, lambda o: _on_clock(o, o.clock)["measured"]),
        simulated_step_time=_of(_TIMES, lambda o: _on_clock(o, o.clock)["simulated"]),
        step_time=words.or_null(words.SECONDS),
        mean_error=words.or_null(error),
        worst_error=words.or_null(worst),
        clock=words.text("what counts the steps: host or gpu"),
        clocks=words.named(
            _BOTH,
            of=lambda o: {clock: _on_clock(o, clock) for clock in ("host", "gpu")},
        ),
        comm=words.text("recorded or simulated", "mode"),
        cluster=words.or_null(words.text(of=lambda o: o.cluster or None)),
        changes=words.items(name, "in words"),
        breakdown=_of(_SHARES, lambda o: dict(zip(TIMES, breakdown(o), strict=True))),
        families=words.named(words.SECONDS, "kernel family -> s", families),
        overlap=_of(_SHARES, overlap),
        residual=words.named(
            words.SECONDS,
            "what the simulated step has more than the measured",
            residual,
        ),
        critical_path=_of(run.CRITICAL_PATH, lambda o: path(o).to_dict()),
        free=words.items(saved, "the step if that took no time (--free)"),
        reports=words.named(
            words.whole(),
            "what the reader noticed -> how often",
            lambda o: dict(sorted(o.notes.items())),
        ),
        dropped=words.items(dropped, "what the reader left out"),
        operations=words.whole(of="replay.graph.operations"),
    )


def schema() -> dict[str, Any]:
    """The JSON Schema of `prestep replay --json`."""
    return words.titled(
        "A recorded run, replayed: `prestep replay --json`.",
        words.either(
            "a replay, a comparison, or the stragglers of a job",
            _replayed(),
            comparison.SCHEMA,
            stragglers.SCHEMA,
        ),
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The JSON of a replay."""
    return _replayed().row(outcome)


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
    lines = [
        *_answer(outcome),
        *_head(outcome),
        *_step_lines(outcome),
        *_table(("share of the last step", *TIMES), _shares(outcome)),
        *_table(("communication by axis", *TIMES), _axes(outcome)),
        *_path_lines(outcome),
        *_table(("if this took no time", "step", "saved"), _free(outcome)),
        *_note_lines(outcome),
    ]
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
    steps = [
        (str(step.rank), step.step, *map(_time, step.on(outcome.clock)))
        for step in outcome.steps
    ]
    parts = _parts(path(outcome).parts()[:12])
    notes = [(what, str(count)) for what, count in sorted(outcome.notes.items())]
    tables = [
        Sheet("Steps", ("rank", "step", *TIMES), steps, texts=2),
        Sheet("Where the last step goes", ("share", *TIMES), _shares(outcome)),
        Sheet("Communication by axis", ("axis", *TIMES), _axes(outcome)),
        Sheet("Critical path of the last step", ("part", "time", "of the path"), parts),
        Sheet("If this took no time", ("what", "step", "saved"), _free(outcome)),
        Sheet("What the traces did not say", ("what", "times"), notes),
    ]
    return " ".join(_answer(outcome)), tables, [line for line in _head(outcome) if line]


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


def _parts(parts: Iterable[dict[str, Any]]) -> Rows:
    return [
        (path_part(part), format_duration(part["seconds"]), percent(part["share"]))
        for part in parts
    ]


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
    yield ""


def _step_lines(outcome: Outcome) -> Iterator[str]:
    """Measured and simulated time of every step, and how they differ."""
    yield f"{'rank':>4}  {'step':<18} {'measured':>12} {'simulated':>12} {'difference':>10}"
    for step in outcome.steps:
        yield _step_line(step, outcome.clock)
    clock = CLOCKS["gpu" if outcome.clock == "gpu" else "host"]
    yield ""
    yield f"a step is counted between {clock} (--clock)"
    average = _mean(outcome)
    if average is not None:
        worst = 100 * outcome.worst
        yield f"mean error {100 * average:.2f} %, worst {worst:.2f} %"


def _step_line(step: StepTime, clock: str) -> str:
    measured, simulated = step.on(clock)
    error = "" if isnan(measured) else f"{100 * _error(step, clock):+.2f} %"
    times = f"{_time(measured):>12} {format_duration(simulated):>12}"
    return f"{step.rank:>4}  {step.step:<18} {times} {error:>10}"


def _table(head: tuple[str, str, str], rows: Rows) -> Iterator[str]:
    """Names and two times each, if there are any."""
    if rows:
        yield from ("", f"{head[0]:<24} {head[1]:>12} {head[2]:>12}")
    for name, one, other in rows:
        yield f"  {name:<22} {one:>12} {other:>12}"


def _note_lines(outcome: Outcome) -> Iterator[str]:
    if outcome.notes:
        yield from ("", "What the traces did not say")
    for what, count in sorted(outcome.notes.items()):
        yield f"  {count:>6} x {what}"


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


def _path_lines(outcome: Outcome, most: int = 6) -> Iterator[str]:
    """The critical path: its longest parts, and the rest together."""
    walked = path(outcome)
    length = format_duration(walked.length)
    yield ""
    yield f"critical path of the last step, {length} through all ranks"
    parts = walked.parts()
    for name, seconds, share in _parts(parts[:most]):
        yield f"  {name:<35} {seconds:>12} {share:>7}"
    if rest := parts[most:]:
        seconds = format_duration(sum(part["seconds"] for part in rest))
        yield f"  {f'{len(rest)} more':<35} {seconds:>12}"
