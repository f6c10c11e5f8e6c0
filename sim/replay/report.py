"""What a replay prints, writes as JSON and draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isnan
from statistics import mean
from typing import Any

from prestep.sim.analysis.critical_path import HOST, path_part
from prestep.sim.extras import lazily
from prestep.sim.outputs import words
from prestep.sim.replay import comparison, stragglers
from prestep.sim.replay.answers import overlap, path
from prestep.sim.replay.outcome import Outcome, StepTime
from prestep.sim.replay.shares import SHARES, breakdown, families
from prestep.sim.sheets import Sheet
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


def schema() -> dict[str, Any]:
    """The JSON Schema of `prestep replay --json`."""
    replayed = words.table(
        "as it was, or with changes",
        measured_step_time=_TIMES,
        simulated_step_time=_TIMES,
        step_time=words.or_null(words.SECONDS),
        mean_error=words.or_null(words.number("share; null: something was changed")),
        worst_error=words.or_null(words.number("share")),
        clock=words.text("what counts the steps: host or gpu"),
        clocks=words.named(words.table("", measured=_TIMES, simulated=_TIMES)),
        comm=words.text("recorded or simulated"),
        cluster=words.or_null(words.text()),
        changes=words.items(words.text(), "in words"),
        breakdown=words.table(
            "", measured=comparison.TIME_BY_SHARE, simulated=comparison.TIME_BY_SHARE
        ),
        families=words.named(words.SECONDS, "kernel family -> s"),
        overlap=words.table(
            "", measured=comparison.TIME_BY_SHARE, simulated=comparison.TIME_BY_SHARE
        ),
        residual=words.named(
            words.SECONDS, "what the simulated step has more than the measured"
        ),
        critical_path=run.CRITICAL_PATH,
        free=words.items(
            words.table(
                "", free=words.text(), step_time=words.SECONDS, saved=words.SECONDS
            ),
            "the step if that took no time (--free)",
        ),
        reports=words.named(words.whole(), "what the reader noticed -> how often"),
        dropped=words.items(
            words.table(
                "",
                rank=words.whole(),
                what=words.text(),
                why=words.text(),
                count=words.whole(),
            ),
            "what the reader left out",
        ),
        operations=words.whole(),
    )
    return words.titled(
        "A recorded run, replayed: `prestep replay --json`.",
        words.either(
            "a replay, a comparison, or the stragglers of a job",
            replayed,
            comparison.SCHEMA,
            stragglers.SCHEMA,
        ),
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Seconds by rank and step, and what they rest on."""
    measured, simulated = breakdown(outcome)
    return {
        "measured_step_time": _measured(outcome, outcome.clock),
        "simulated_step_time": _simulated(outcome, outcome.clock),
        "step_time": outcome.step_time,
        "mean_error": _mean(outcome),
        "worst_error": None if _mean(outcome) is None else outcome.worst,
        "clock": outcome.clock,
        "clocks": {clock: _on_clock(outcome, clock) for clock in ("host", "gpu")},
        "comm": outcome.mode,
        "cluster": outcome.cluster or None,
        "changes": list(outcome.changes),
        "breakdown": {"measured": measured, "simulated": simulated},
        "families": families(outcome),
        "overlap": overlap(outcome),
        "residual": residual(outcome),
        "critical_path": path(outcome).to_dict(),
        "free": list(outcome.free),
        "reports": dict(sorted(outcome.notes.items())),
        "dropped": list(outcome.dropped),
        "operations": outcome.replay.graph.operations,
    }


Times = dict[str, dict[str, float | None]]  # seconds by rank and step


def _on_clock(outcome: Outcome, clock: str) -> dict[str, Times]:
    return {
        "measured": _measured(outcome, clock),
        "simulated": _simulated(outcome, clock),
    }


def _measured(outcome: Outcome, clock: str) -> Times:
    return _by_rank((step, step.on(clock)[0]) for step in outcome.steps)


def _simulated(outcome: Outcome, clock: str) -> Times:
    return _by_rank((step, step.on(clock)[1]) for step in outcome.steps)


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
