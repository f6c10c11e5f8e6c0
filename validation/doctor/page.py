"""A diagnosis for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prestep.sim.collectives.settings import Nccl
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.units import (
    aligned,
    format_bandwidth,
    format_bytes,
    format_duration,
    percent,
)
from prestep.validation.doctor.causes import causes
from prestep.validation.doctor.diagnosis import Diagnosis
from prestep.validation.doctor.logs import Run
from prestep.validation.doctor.normal import Part, interval, slow
from prestep.validation.doctor.stuck import DELAY
from prestep.validation.doctor.sweep import BANDWIDTH, LARGE, LATENCY, Size, Sweep

#: Names of hosts that take no more columns are shown.
LONGEST = 60
#: What the parts of a sweep are called.
BOUND = {
    LATENCY: "bound by latency",
    BANDWIDTH: "bound by bandwidth",
    LARGE: "of 256 MiB and more",
}
HEAD = (
    "size",
    "measured",
    "busbw",
    "of predicted",
    "good machines",
    "NCCL runs",
    "verdict",
)


# Of an answer: a diagnosis, the run, and the name of its cluster.
SCHEMA = schemas_beside(
    __file__,
    delay=DELAY,
    good=lambda answer: not answer.diagnosis.abnormal,
    skipped=lambda answer: map(str, answer.run.skipped),
    fastest=lambda size: interval(size)[0],
    slowest=lambda size: interval(size)[1],
    slow=lambda size: slow(size),
    sizes=lambda part: [size.size for size in part.sizes],
    least=lambda part: part.range[0],
    most=lambda part: part.range[1],
)["schema"]


class Answer(NamedTuple):
    """A diagnosis, what was measured, and the name of the cluster that it is held against."""

    diagnosis: Diagnosis
    run: Run
    cluster: str


def as_json(diagnosis: Diagnosis, run: Run, cluster: str) -> dict[str, Any]:
    """Seconds and bytes."""
    return SCHEMA.row(Answer(diagnosis, run, cluster))


def as_text(diagnosis: Diagnosis, run: Run, cluster: str) -> str:
    """The page for people."""
    return "\n".join(_lines(diagnosis, run, cluster))


def _lines(diagnosis: Diagnosis, run: Run, cluster: str) -> Iterator[str]:
    yield extent(run, cluster)
    for sweep in diagnosis.sweeps:
        yield from ("", heading(sweep))
        cells = [size_cells(size) for size in sweep.sizes]
        yield from aligned([HEAD, *cells], left=(5, 6))
    yield ""
    yield verdict(diagnosis)
    yield from (f"  {delay}" for delay in diagnosis.delays)
    yield from (f"  {part_line(part)}" for part in diagnosis.parts)
    yield from _sign_lines(diagnosis)
    yield from _cause_lines(diagnosis)
    if diagnosis.faster:
        yield "NCCL could choose better by what prestep predicts (NCCL_ALGO, NCCL_PROTO, NCCL_MIN_CTAS, or a tuner):"
        yield from (f"  {one}" for one in diagnosis.faster)
    yield from _ruled_out_lines(diagnosis)
    if run.version and (newer := Nccl(version=run.version).newer):
        yield f"note: {newer}"
    for mistake in run.skipped:
        yield f"skipped: {mistake}"


def extent(run: Run, cluster: str) -> str:
    """What was measured, and the cluster that it is held against."""
    gpus = f"{run.ranks} GPUs on " if run.ranks else ""
    measured = f"{gpus}1 host" if run.hosts <= 1 else f"{gpus}{run.hosts} hosts"
    return f"{measured}, held against {cluster}" if cluster else measured


def heading(sweep: Sweep) -> str:
    row = sweep.row
    hosts = f" on {row.hosts} hosts" if row.hosts else ""
    names = f" ({row.machine})" if 0 < len(row.machine) <= LONGEST else ""
    return f"{sweep.op}, {row.ranks} ranks{hosts}{names}"


def size_cells(size: Size) -> tuple[str, ...]:
    """The cells of one size: how long it took, how long good machines take, and what that makes of it."""
    expected = size.expected
    low, high = (bound / expected.time for bound in interval(size))
    channels = (
        "1 channel" if expected.channels == 1 else f"{expected.channels} channels"
    )
    ran = f"{expected.algo} {expected.proto}, {channels}"
    return (
        format_bytes(size.size) if size.size else "",
        format_duration(size.measured),
        format_bandwidth(size.busbw) if size.size else "",
        f"{size.measured / expected.time:.2f}x",
        f"{low:.2f}x to {high:.2f}x",
        ran if expected.algo else "",
        "slow" if slow(size) else "good",
    )


def verdict(diagnosis: Diagnosis) -> str:
    """The answer in a sentence: good and how surely, or not and by how much."""
    if any(delay.hangs for delay in diagnosis.delays):
        return f"not good: the job hangs, held up by {diagnosis.delays[0]}"
    if not diagnosis.sweeps and not diagnosis.delays:
        return "no times in the log: " + (
            "its lines show a cause" if diagnosis.signs else "its lines show no cause"
        )
    if not diagnosis.abnormal:
        hidden = percent((diagnosis.resolution or 1.0) - 1.0)
        return f"good: as fast as good machines of this kind (what costs less than {hidden} may hide)"
    slowest = [part for part in diagnosis.parts if part.abnormal]
    if not slowest:
        return f"not good: {diagnosis.delays[0]}"
    worst = max(part.ratio for part in slowest)
    named = ", ".join(
        f"{_sizes(part)} {BOUND.get(part.name, '')}".strip() + _on(part)
        for part in slowest
    )
    return f"not good: {worst:.2f} times as long as predicted ({named})"


def _on(part: Part) -> str:
    """The hosts of a part, where sweeps differ in them."""
    if part.hosts is None:
        return ""
    return " on 1 host" if part.hosts == 1 else f" on {part.hosts} hosts"


def _sizes(part: Part) -> str:
    count = len(part.sizes)
    thing = "size" if part.place != part.name else "step"
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def part_line(part: Part) -> str:
    """Where the machine stands among good ones: `bandwidth, host: 1.02 of the predicted time; good machines ...`."""
    low, high = part.range
    name = ", ".join(dict.fromkeys((part.name, part.place)))
    return (
        f"{name} ({_sizes(part)}{_on(part)}): {part.ratio:.2f} of the predicted time; "
        f"good machines take {low:.2f} to {high:.2f} of it"
    )


def _cause_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.abnormal and diagnosis.sweeps and not diagnosis.suspects:
        yield "no cause that prestep knows predicts this log; its own prediction may be at fault"
    if diagnosis.suspects and not diagnosis.abnormal:
        yield "slower than predicted all the same; if it was faster once, these predict its times:"
    elif diagnosis.suspects and not diagnosis.suspects[0][0].supported:
        yield "no line of the log shows a cause, and none predicts all of its times; the nearest are:"
    elif diagnosis.suspects and not diagnosis.suspects[0][0].signs:
        yield "no line of the log shows a cause; those that predict its times best are:"
    for number, group in enumerate(diagnosis.suspects, 1):
        if len(group) > 1:
            yield f"{number}. one of these, which predict the same times:"
        for suspect in group:
            lead = "   * " if len(group) > 1 else f"{number}. "
            away = percent(suspect.explained)
            yield f"{lead}{suspect.cause.title}: {suspect.change.text} ({away} of the difference)"
            yield from (
                f"     line {sign.where}: {sign.text}" for sign in suspect.signs
            )
            yield f"     check: {suspect.cause.check}"


def _sign_lines(diagnosis: Diagnosis) -> Iterator[str]:
    known = causes()
    listed = {one.name for group in diagnosis.suspects for one in group}
    for name, signs in diagnosis.signs.items():
        if name not in listed:
            yield f"the log shows: {known[name].title} ({signs[0].where}: {signs[0].text})"
            if diagnosis.abnormal:
                yield f"     check: {known[name].check}"


def _ruled_out_lines(diagnosis: Diagnosis) -> Iterator[str]:
    for name, signs in diagnosis.ruled_out.items():
        yield f"ruled out: {causes()[name].title} ({signs[0].where}: {signs[0].text})"
