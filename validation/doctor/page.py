"""A diagnosis for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prestep.sim.collectives.table import bus_factor
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
from prestep.validation.doctor.sweep import Size, Sweep
from prestep.validation.formats.collective_rows import nccl_op

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
    "Whether a log of NCCL is normal: `prestep doctor nccl --json`.",
    words.table(
        "",
        normal=words.flag("no part is slower than good machines are"),
        verdict=words.text(
            "normal, cannot tell (good machines differ too much) or abnormal"
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
            "that predict the log, the likeliest first; those of a group predict the same",
        ),
        ruled_out=words.named(_SIGNS),
        signs=words.named(_SIGNS),
        skipped=words.items(words.text(), "lines that could not be read"),
    ),
)


def as_json(diagnosis: Diagnosis, run: Run, cluster: str) -> dict[str, Any]:
    """Seconds and bytes."""
    return {
        "normal": not diagnosis.abnormal,
        "verdict": diagnosis.verdict,
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
    return {
        "bytes": size.size,
        "measured": size.measured,
        "busbw": _busbw(size, sweep),
        "expected": expected.time,
        "low": low,
        "high": high,
        "slow": slow(size),
        "algo": expected.algo,
        "proto": expected.proto,
        "channels": expected.channels,
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
    factor = bus_factor(nccl_op(sweep.op), sweep.row.ranks)
    return size.size / size.measured * factor


def as_text(diagnosis: Diagnosis, run: Run, cluster: str) -> str:
    """The page for people."""
    return "\n".join(_lines(diagnosis, run, cluster))


def _lines(diagnosis: Diagnosis, run: Run, cluster: str) -> Iterator[str]:
    extent = f"{run.ranks} GPUs on {max(1, run.hosts)} host(s)"
    yield f"{extent}, held against {cluster}" if cluster else extent
    for sweep in diagnosis.sweeps:
        yield from ("", f"{sweep.op}, {sweep.row.ranks} ranks")
        cells = [_size_cells(size, sweep) for size in sweep.sizes]
        yield from aligned([HEAD, *cells], left=(5, 6))
    yield ""
    yield _verdict(diagnosis)
    yield from map(_part_line, diagnosis.parts)
    yield from _cause_lines(diagnosis)
    yield from _sign_lines(diagnosis)
    for mistake in run.skipped:
        yield f"skipped: {mistake}"


def _size_cells(size: Size, sweep: Sweep) -> tuple[str, ...]:
    """The cells of one size: how long it took, how long good machines take, and what that makes of it."""
    expected = size.expected
    low, high = (bound / expected.time for bound in interval(size))
    return (
        format_bytes(size.size),
        format_duration(size.measured),
        format_bandwidth(_busbw(size, sweep)),
        f"{size.measured / expected.time:.2f}x",
        f"{low:.2f}x to {high:.2f}x",
        f"{expected.algo} {expected.proto}, {expected.channels} channels",
        "slow" if slow(size) else "good",
    )


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.sweeps:
        return "no times in the log: " + (
            "its lines show a cause" if diagnosis.signs else "its lines show no cause"
        )
    if diagnosis.verdict == "normal":
        return "normal: as fast as good machines of this kind"
    if not diagnosis.abnormal:
        return "cannot tell: among good machines of this kind, but these differ by more than a quarter"
    slowest = [part for part in diagnosis.parts if part.abnormal]
    named = ", ".join(f"{_sizes(part)} bound by {part.name}" for part in slowest)
    return f"abnormal: slower than good machines ({named})"


def _sizes(part: Part) -> str:
    count = len(part.sizes)
    return "1 size" if count == 1 else f"{count} sizes"


def _part_line(part: Part) -> str:
    """Where the machine stands among good ones: `  bandwidth, host: 1.02 of the predicted time; good machines ...`."""
    low, high = part.range
    return (
        f"  {part.name}, {part.place} ({_sizes(part)}): {part.ratio:.2f} of the predicted time; "
        f"good machines take {low:.2f} to {high:.2f} of it"
    )


def _cause_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.abnormal and diagnosis.sweeps and not diagnosis.suspects:
        yield "no cause that prestep knows predicts this log; its own prediction may be at fault: docs/doctor.md"
    if diagnosis.suspects and not diagnosis.suspects[0][0].supported:
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
    for name, signs in diagnosis.ruled_out.items():
        yield f"ruled out: {known[name].title} ({signs[0].where}: {signs[0].text})"
