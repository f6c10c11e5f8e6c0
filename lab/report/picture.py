"""README's picture, docs/spine.svg: the spine question, drawn. `python -m lab.report.figures` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from prestep.sim import api
from prestep.sim.units import format_duration

PICTURE = Path(__file__).parents[2] / "docs" / "spine.svg"
SCENARIO = "examples/oversubscribed-spine.toml"
#: Title of each panel, and what it changes.
PANELS: dict[str, dict[str, object]] = {
    "As it is": {},
    "Twice the spine bandwidth": {"spine.bandwidth": "2x"},
    "Neighbours kept together": {"placement.by": "leaf"},
}
WIDTH, LEFT, TOP, PANEL, LANE = 880, 84, 62, 112, 22
COMPUTE, HIDDEN, EXPOSED, SPINE, INK, FAINT = (
    "#3d6fb4",
    "#f0b27a",
    "#c0392b",
    "#7d8a99",
    "#1f2933",
    "#e4e8ee",
)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """One step as the picture shows it; seconds from its begin, `spine` is (time, share of the bandwidth)."""

    duration: float
    compute: tuple[Interval, ...]
    communication: tuple[Interval, ...]
    spine: tuple[tuple[float, float], ...]


def step_of(changes: dict[str, object]) -> Step:
    """The last simulated step of rank 0: it ends with its compute stream and is as long as the step time says."""
    result = api.simulate(PICTURE.parents[1] / SCENARIO, changes)
    spans = api.spans(result)
    on_compute = spans["stream"] == "compute"
    end = float(spans[on_compute]["end"].max())
    begin = end - result.step_time
    load = next((load for load in result.link_loads if "spine" in load.name), None)
    return Step(
        result.step_time,
        tuple(_merged(_within(spans[on_compute], begin, end))),
        tuple(_merged(_within(spans[spans["kind"] == "collective"], begin, end))),
        ()
        if load is None
        else tuple(
            _samples(load.time - begin, load.load / load.bandwidth, result.step_time)
        ),
    )


def _within(spans: pd.DataFrame, begin: float, end: float) -> Iterator[Interval]:
    ordered = spans.sort_values("start")
    for start, stop in zip(ordered["start"], ordered["end"], strict=True):
        if stop > begin and start < end:
            yield max(start, begin) - begin, min(stop, end) - begin


def _merged(intervals: Iterable[Interval], gap: float = 4e-4) -> Iterator[Interval]:
    """Intervals in order of their starts; neighbours nearer than half a pixel are one."""
    last: Interval | None = None
    for start, stop in intervals:
        if last is not None and start - last[1] < gap:
            last = last[0], max(stop, last[1])
            continue
        if last is not None:
            yield last
        last = start, stop
    if last is not None:
        yield last


def _samples(
    time: np.ndarray, share: np.ndarray, duration: float, count: int = 360
) -> Iterator[tuple[float, float]]:
    """The load of a link, which is constant between changes, averaged over `count` equal parts of the step."""
    fine = (np.arange(count * 20) + 0.5) * duration / (count * 20)
    loads = share[np.clip(np.searchsorted(time, fine, side="right") - 1, 0, None)]
    for at, mean in enumerate(loads.reshape(count, 20).mean(axis=1)):
        yield (at + 0.5) * duration / count, float(mean)


def without(
    intervals: Sequence[Interval], covered: Sequence[Interval]
) -> Iterator[Interval]:
    """The parts of `intervals` that no interval of `covered` touches; both are in order and do not overlap."""
    for start, stop in intervals:
        for low, high in covered:
            if high <= start or low >= stop:
                continue
            if low > start:
                yield start, low
            start = max(start, high)
        if start < stop:
            yield start, stop


def drawn(steps: dict[str, Step]) -> str:
    """The panels below each other, on one axis of time."""
    scale = (WIDTH - LEFT - 24) / max(step.duration for step in steps.values())
    height = TOP + PANEL * len(steps)
    parts = [
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        *_legend(),
    ]
    for row, (title, step) in enumerate(steps.items()):
        parts += _panel(title, step, TOP + PANEL * row, scale)
    name = "A training step of 128 GPUs: computing, communication and use of the spine, for three networks"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{name}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _legend() -> Iterator[str]:
    yield _text(
        "One step of Llama 3 8B (FSDP) on 128 H100, spine oversubscribed 4:1 (simulated)",
        24,
        24,
        weight="bold",
    )
    at = LEFT
    for colour, meaning in (
        (COMPUTE, "kernels"),
        (HIDDEN, "communication beside kernels"),
        (EXPOSED, "communication that nothing hides"),
        (SPINE, "use of a spine link"),
    ):
        yield f'<rect x="{at}" y="36" width="11" height="11" fill="{colour}"/>'
        yield _text(meaning, at + 16, 46, size=12)
        at += 42 + round(6.1 * len(meaning))


def _panel(title: str, step: Step, top: float, scale: float) -> Iterator[str]:
    end = LEFT + step.duration * scale
    yield f'<rect x="{LEFT}" y="{top + 20}" width="{end - LEFT:.1f}" height="{3 * LANE + 10}" fill="{FAINT}"/>'
    yield _text(
        f"{title}: {format_duration(step.duration)}", LEFT, top + 14, weight="bold"
    )
    for lane, name in enumerate(("compute", "NCCL", "spine")):
        yield _text(
            name, LEFT - 10, top + 37 + lane * (LANE + 5), anchor="end", size=12
        )
    yield _boxes(step.compute, COMPUTE, top + 20, scale)
    yield _boxes(step.communication, HIDDEN, top + 25 + LANE, scale)
    yield _boxes(
        tuple(without(step.communication, step.compute)),
        EXPOSED,
        top + 25 + LANE,
        scale,
    )
    yield _area(step.spine, top + 30 + 3 * LANE, scale)


def _boxes(intervals: Sequence[Interval], colour: str, top: float, scale: float) -> str:
    """All intervals of a lane as one path."""
    path = "".join(
        f"M{LEFT + start * scale:.1f} {top}h{max((stop - start) * scale, 0.4):.1f}v{LANE}H{LEFT + start * scale:.1f}z"
        for start, stop in intervals
    )
    return f'<path fill="{colour}" d="{path}"/>'


def _area(samples: Sequence[tuple[float, float]], bottom: float, scale: float) -> str:
    if not samples:
        return ""
    points = "".join(
        f"L{LEFT + time * scale:.1f} {bottom - min(share, 1.0) * LANE:.1f}"
        for time, share in samples
    )
    first, last = (LEFT + samples[end][0] * scale for end in (0, -1))
    return (
        f'<path fill="{SPINE}" d="M{first:.1f} {bottom}{points}L{last:.1f} {bottom}z"/>'
    )


def _text(
    text: str,
    x: float,
    y: float,
    weight: str = "normal",
    anchor: str = "start",
    size: int = 13,
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-weight="{weight}" '
        f'text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
    )


def picture() -> str:
    """The SVG text."""
    return drawn({title: step_of(changes) for title, changes in PANELS.items()})
