"""A diagnosis for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prestep.sim.collectives.settings import Nccl
from prestep.sim.exchanges.table import bus_factor
from prestep.sim.outputs import words
from prestep.sim.units import (
    aligned,
    format_bandwidth,
    format_bytes,
    format_duration,
    percent,
)
from prestep.validation.doctor.causes import causes
from prestep.validation.doctor.diagnosis import Diagnosis, Sign, Suspect
from prestep.validation.doctor.logs import Run
from prestep.validation.doctor.normal import Part, interval, slow
from prestep.validation.doctor.stuck import DELAYS
from prestep.validation.doctor.sweep import BANDWIDTH, LARGE, LATENCY, Size, Sweep
from prestep.validation.formats.collective_rows import nccl_op

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


_SIGNS = words.items(words.named(words.text()), "lines of the log, and what they say")

SCHEMA = words.titled(
    "Whether a cluster is as fast as good ones: `prestep doctor nccl --json` and `prestep doctor cluster --json`.",
    words.table(
        "",
        good=words.flag("no part is slower than good machines are"),
        verdict=words.text("good or not good"),
        resolution=words.or_null(
            words.number("by how many times a part may be slower and still be good")
        ),
        cluster=words.text("what the log was held against"),
        ranks=words.whole(),
        hosts=words.whole(),
        sweeps=words.items(
            words.table(
                "an operation",
                op=words.text(),
                ranks=words.whole(),
                sizes=words.items(
                    words.table(
                        "",
                        bytes=words.number(),
                        **words.each(words.SECONDS, "measured", "expected", "low"),
                        busbw=words.number("bytes/s"),
                        high=words.number("s: good machines lie between"),
                        slow=words.flag(),
                        algo=words.text(),
                        proto=words.text(),
                        channels=words.whole(),
                    )
                ),
            )
        ),
        parts=words.items(
            words.table(
                "sizes that one thing bounds",
                place=words.text(),
                bound_by=words.text(),
                sizes=words.items(words.number("bytes")),
                excess=words.number("measured over expected"),
                limit=words.number("from where on it is abnormal"),
                abnormal=words.flag(),
                ratio=words.number(
                    "measured over predicted time, middle over the sizes"
                ),
                low=words.number("of the fastest good machines"),
                high=words.number("of the slowest good machines"),
            )
        ),
        causes=words.items(
            words.items(
                words.table(
                    "",
                    cause=words.text(),
                    supported=words.flag(
                        "a line shows it, or it predicts the times of the log"
                    ),
                    title=words.text(),
                    change=words.text(
                        "what is changed to simulate it, as --set takes it"
                    ),
                    explained=words.or_null(
                        words.number("share of the excess that it explains")
                    ),
                    distance=words.or_null(
                        words.number("of its times to the measured ones")
                    ),
                    check=words.text("what to look at"),
                    signs=_SIGNS,
                    times=words.items(words.SECONDS),
                )
            ),
            "that predict the log, the likeliest first, or may hide in a good one; those of a group predict the same",
        ),
        ruled_out=words.named(_SIGNS),
        signs=words.named(_SIGNS),
        faster=words.items(
            words.text(), "what NCCL could choose and would be faster, of a good log"
        ),
        delays=DELAYS,
        skipped=words.items(words.text(), "lines that could not be read"),
    ),
)


def as_json(diagnosis: Diagnosis, run: Run, cluster: str) -> dict[str, Any]:
    """Seconds and bytes."""
    return {
        "good": not diagnosis.abnormal,
        "verdict": diagnosis.verdict,
        "resolution": diagnosis.resolution,
        "cluster": cluster,
        "ranks": run.ranks,
        "hosts": run.hosts,
        "sweeps": [_sweep_json(sweep) for sweep in diagnosis.sweeps],
        "parts": [_part_json(part) for part in diagnosis.parts],
        "causes": [
            [_suspect_json(one) for one in group] for group in diagnosis.suspects
        ],
        "ruled_out": {k: _signs_json(v) for k, v in diagnosis.ruled_out.items()},
        "signs": {k: _signs_json(v) for k, v in diagnosis.signs.items()},
        "faster": [*diagnosis.faster],
        "delays": [delay.to_json() for delay in diagnosis.delays],
        "skipped": [str(mistake) for mistake in run.skipped],
    }


def _sweep_json(sweep: Sweep) -> dict[str, Any]:
    return {
        "op": sweep.op,
        "ranks": sweep.row.ranks,
        "sizes": [_size_json(size, sweep) for size in sweep.sizes],
    }


def _size_json(size: Size, sweep: Sweep) -> dict[str, Any]:
    low, high = interval(size)
    expected = size.expected
    ran = {key: getattr(expected, key) for key in ("algo", "proto", "channels")}
    return {
        "bytes": size.size,
        "measured": size.measured,
        "busbw": _busbw(size, sweep),
        "expected": expected.time,
        "low": low,
        "high": high,
        "slow": slow(size),
        **ran,
    }


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "place": part.place,
        "bound_by": part.name,
        "sizes": [size.size for size in part.sizes],
        "excess": part.excess,
        "limit": part.limit,
        "ratio": part.ratio,
        "low": part.range[0],
        "high": part.range[1],
        "abnormal": part.abnormal,
    }


def _suspect_json(suspect: Suspect) -> dict[str, Any]:
    return {
        "cause": suspect.name,
        "title": suspect.cause.title,
        "change": suspect.change.text,
        "explained": suspect.explained,
        "supported": suspect.supported,
        "distance": suspect.distance,
        "check": suspect.cause.check,
        "signs": _signs_json(suspect.signs),
        "times": list(suspect.times),
    }


def _signs_json(signs: tuple[Sign, ...]) -> list[dict[str, str]]:
    return [sign._asdict() for sign in signs]


def _busbw(size: Size, sweep: Sweep) -> float:
    """Bus bandwidth of a size; 0 of what is no collective."""
    ran = size.size / size.measured
    return ran and ran * bus_factor(nccl_op(sweep.op), sweep.row.ranks)


def as_text(diagnosis: Diagnosis, run: Run, cluster: str) -> str:
    """The page for people."""
    return "\n".join(_lines(diagnosis, run, cluster))


def _lines(diagnosis: Diagnosis, run: Run, cluster: str) -> Iterator[str]:
    yield extent(run, cluster)
    for sweep in diagnosis.sweeps:
        yield from ("", heading(sweep))
        cells = [size_cells(size, sweep) for size in sweep.sizes]
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


def size_cells(size: Size, sweep: Sweep) -> tuple[str, ...]:
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
        format_bandwidth(_busbw(size, sweep)) if size.size else "",
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
