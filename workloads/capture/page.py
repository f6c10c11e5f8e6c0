"""The page of `prestep capture show`: a recording as text of 80 columns, or as tables for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.units import format_bytes
from prestep.workloads.capture.recording import Recording
from prestep.workloads.capture.summary import Communication, Kind, Summary, ranges

WIDTH, MOST = 80, 15
Heading = str
Section = tuple[Heading, list[str]]
OF_THE_PROGRAM = (
    *("world", "step", "gpu", "parameters"),
    *("command", "versions", "compiled", "assumed"),
)


SCHEMA = schemas_beside(__file__)["schema"]


def as_tables(recording: Recording, summaries: Sequence[Summary]) -> dict[str, Any]:
    """All of it, in bytes and floating-point operations."""
    return {
        **{name: getattr(recording, name) for name in OF_THE_PROGRAM},
        "ranks": [asdict(each) for each in summaries],
    }


def sections(
    path: Path, recording: Recording, summaries: Sequence[Summary]
) -> Iterator[Section]:
    """Headings and the lines below them: the recording, one rank, what was assumed."""
    yield str(path), _program(recording, summaries)
    shown = summaries[0]
    kinds = [kind for kind in shown.operations if kind.kernels]
    yield f"Operations of rank {shown.rank}", _operations(kinds, shown)
    if shown.host:
        yield "The host computes", _host(shown.host)
    if shown.communications:
        yield "Communication", _communication(shown.communications)
    if shown.waits:
        rows = [("  " + what, f"{count:,}") for what, count in shown.waits.items()]
        yield "The host waits", _aligned(rows)
    if recording.compiled:
        yield "Compiled functions", _compiled(recording, shown)
    if recording.assumed:
        rows = [
            ("  " + what, f"{n:,}") for what, n in sorted(recording.assumed.items())
        ]
        yield "Assumed: values that nobody computed are 1, or no", _aligned(rows)


def _program(recording: Recording, summaries: Sequence[Summary]) -> list[str]:
    script = " ".join((Path(recording.command[0]).name, *recording.command[1:]))
    torch = recording.versions.get("torch", "")
    size = format_bytes(summaries[0].alive)
    lines = [
        f"  {script}",
        f"  step {recording.step}, told of {recording.gpu.upper()}s, PyTorch {torch}",
        f"  {recording.parameters:,} weights; {size} taken before the step",
        f"  {recording.world} {'rank' if recording.world == 1 else 'ranks'}",
    ]
    if recording.world > 1:
        for each in summaries:
            lines.append(f"    rank {each.rank} stands for {ranges(each.represents)}")
    return [_cut(line) for line in lines]


def _operations(kinds: Sequence[Kind], shown: Summary) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "calls", "kernels", "moved", "work")]
    rows += [_kind(f"  {kind.name}", kind) for kind in kinds[:MOST]]
    if others := kinds[MOST:]:
        rows.append(_kind(f"  {len(others)} others", _sum(others)))
    rows.append(_kind("  all", _sum(kinds)))
    idle = sum(kind.calls for kind in shown.operations if not kind.kernels)
    lines = _aligned(rows)
    if idle:
        lines.append(f"  and {idle:,} calls that launch nothing (views, new memory)")
    return lines


def _kind(name: str, kind: Kind) -> tuple[str, ...]:
    work = f"{kind.flops / 1e12:,.3f} TFLOP" if kind.flops else ""
    return name, f"{kind.calls:,}", f"{kind.kernels:,}", format_bytes(kind.bytes), work


def _sum(kinds: Iterable[Kind]) -> Kind:
    return sum(kinds, Kind(""))


def _host(kinds: Sequence[Kind]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "calls", "moved")]
    several = [_sum(kinds[MOST:])] if kinds[MOST:] else []
    for kind in (*kinds[:MOST], *several):
        name = kind.name or f"{len(kinds) - MOST} others"
        rows.append((f"  {name}", f"{kind.calls:,}", format_bytes(kind.bytes)))
    return _aligned(rows)


def _communication(communications: Sequence[Communication]) -> list[str]:
    rows = [("", "axis", "ranks", "calls", "bytes")]
    for each in communications:
        alone = len(each.ranks) == 1
        group = "alone" if alone else f"{len(each.ranks)}: {ranges(each.ranks)}"
        size = format_bytes(each.bytes)
        axis = "" if alone else each.axis
        rows.append((f"  {each.kind}", axis, group, f"{each.calls:,}", size))
    return _aligned(rows)


def _compiled(recording: Recording, shown: Summary) -> list[str]:
    lines = [f"  {name}" for name in recording.compiled[:MOST]]
    if more := recording.compiled[MOST:]:
        lines.append(f"  {len(more)} more")
    return [_cut(line) for line in lines] + [f"  {shown.regions:,} calls"]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([_cut(first, widths[0]).ljust(widths[0]), *cells]))
    return [line.rstrip() for line in lines]


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
