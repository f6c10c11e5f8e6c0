"""The report's drawings: bars, the cluster with its heat map, the roofline, the tornado."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.exporters._html.svg import box, decades, drawing, element, label
from sim.units import format_duration

if TYPE_CHECKING:
    from sim.costs import Gpu
    from sim.exporters._html.kernels import KernelUse
    from sim.exporters._html.network import Heat

_WIDE, _BOX, _HIGH, _ACROSS, _DOWN = 1100.0, 170.0, 44.0, 260.0, 104.0
#: Of the heat map: width of its names, height of a row.
SIDE, ROW = 230.0, 22.0


def stacked(parts: Sequence[tuple[str, float, str, str]], name: str, whole: float | None = None) -> str:
    """One bar of parts (what, size, class of colour, text for the pointer); `whole` is its full length."""
    total = whole or sum(size for _, size, _, _ in parts) or 1.0
    drawn, x = [], 0.0
    for what, size, colour, told in parts:
        wide = _WIDE * size / total
        drawn.append(box(x, 0, wide, 34, f"{what}: {told}", style=f"fill:var(--{colour})"))
        if wide > 9 * len(what) + 8:
            drawn.append(label(what, x + 8, 22, style="fill:#fff;font-weight:600"))
        x += wide
    drawn.append(element("rect", x=0.5, y=0.5, width=_WIDE - 1, height=33, class_="frame"))
    return drawing(drawn, _WIDE, 34, name)


def cluster(heat: Heat) -> str:
    """The folded cluster; every line twice: a faint one, and over it one as strong as the mean use of the step."""
    columns = [x for x, _ in heat.places.values()]
    rows = [y for _, y in heat.places.values()]
    across = min(_ACROSS, (_WIDE - _BOX) / max(1.0, max(columns) - min(columns)))
    place = {
        at: (_WIDE / 2 + (x - (max(columns) + min(columns)) / 2) * across, 30 + y * _DOWN)
        for at, (x, y) in heat.places.items()
    }
    use: dict[int, float] = {}
    for (at, _), busy in zip(heat.rows, heat.busiest, strict=True):
        use[at] = max(use.get(at, 0.0), float(busy.mean()))
    wires, texts = [], []
    for number, edge in enumerate(heat.folded.edges):
        a, b = edge.ends
        if a == b:
            continue
        (xa, ya), (xb, yb) = sorted((place[a], place[b]), key=lambda p: (p[1], p[0]))
        ends: dict[str, object] = {"x1": xa, "y1": ya, "x2": xb, "y2": yb}
        wires.append(element("line", **ends, class_="under", stroke_width=9))
        opacity = f"{min(1.0, use.get(number, 0.0)):.3f}"
        told = element("title", f"{edge.kind}: {heat.label(number)}, busiest link {use.get(number, 0.0):.1%} used")
        wires.append(
            element("line", told, **ends, class_="wire", stroke_width=9, stroke_opacity=opacity, data_edge=number)
        )
        part = 0.5 if ya == yb else (0.4, 0.6)[number % 2]
        x, y = xa + (xb - xa) * part, ya + (yb - ya) * part
        if ya == yb:  # above the boxes: there is little room between them
            texts.append(label(heat.label(number), x, y - 28, class_="soft", text_anchor="middle"))
        else:
            texts.append(label(heat.label(number), x + 10, y + 4, class_="soft"))
    nodes = []
    for at, (x, y) in place.items():
        nodes.append(
            box(x - _BOX / 2, y - _HIGH / 2, _BOX, _HIGH, heat.folded.classes[at].example, class_="node", rx=7)
        )
        nodes.append(label(heat.told(at), x, y + 5, class_="node"))
    high = 60 + max(rows) * _DOWN
    return drawing([*wires, *texts, *nodes], _WIDE, high, "The cluster, alike devices drawn once")


def heat_map(heat: Heat, length: float) -> str:
    """Rows of links by class and direction, time from left to right; `length` in seconds."""
    parts = heat.mean.shape[1]
    wide = (_WIDE - SIDE) / parts
    drawn = []
    for row, (edge, text) in enumerate(heat.rows):
        y = row * ROW
        kind = heat.folded.edges[edge].kind
        twin = sum(1 for e, t in heat.rows[: row + 1] if (heat.folded.edges[e].kind, t) == (kind, text))
        drawn.append(label(f"{kind}: {text}{f' ({twin})' if twin > 1 else ''}"[:36], 0, y + 15))
        for at, use in enumerate(heat.busiest[row].tolist()):
            if use > 0.002:
                told = f"{text}, from {format_duration(at * length / parts)}: busiest link {use:.1%}"
                told += f", mean of all {heat.mean[row, at]:.1%}"
                x = SIDE + at * wide
                drawn.append(
                    box(x, y + 2, wide + 0.3, ROW - 4, told, class_="cell", fill_opacity=f"{min(1.0, use):.3f}")
                )
        drawn.append(element("rect", x=SIDE, y=y + 2, width=_WIDE - SIDE, height=ROW - 4, class_="frame"))
    low = len(heat.rows) * ROW
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "end" if part == 1.0 else "start"
        x = SIDE + part * (_WIDE - SIDE)
        drawn.append(label(format_duration(part * length), x, low + 14, class_="soft", text_anchor=anchor))
    drawn.append(element("line", id="cursor", x1=0, x2=0, y1=0, y2=low, class_="now", visibility="hidden"))
    return drawing(drawn, _WIDE, low + 20, "Use of links over the step")


def roofline(uses: Sequence[KernelUse], gpu: Gpu, dtype: str) -> str:
    """Kernels that calculate: flop/s over flop per byte, area by time, under the GPU's limits for `dtype`."""
    shown = [u for u in uses if u.flops > 0 and u.bytes > 0 and u.count > 0]
    if not shown:
        return ""
    peak, bandwidth = gpu.roofline.peak_of(dtype), gpu.bandwidth
    xs = [u.flops / u.bytes for u in shown]
    across = decades(min([*xs, peak / bandwidth / 2]), max([*xs, peak / bandwidth * 2]))
    up = decades(max(min(u.speed for u in shown), peak * 1e-7), peak)
    left, right, top, low = 90.0, _WIDE - 20, 14.0, 360.0

    def x(value: float) -> float:
        return left + (right - left) * float(np.log10(value / across[0]) / np.log10(across[-1] / across[0]))

    def y(value: float) -> float:
        share = float(np.log10(max(value, up[0]) / up[0]) / np.log10(up[-1] / up[0]))
        return low - (low - top) * share

    drawn = []
    for v in across:
        drawn.append(element("line", x1=x(v), x2=x(v), y1=top, y2=low, class_="grid"))
        drawn.append(label(f"{v:g}", x(v), low + 18, class_="soft", text_anchor="middle"))
    for v in up:
        drawn.append(element("line", x1=left, x2=right, y1=y(v), y2=y(v), class_="grid"))
        drawn.append(label(_flops(v), left - 8, y(v) + 4, class_="soft", text_anchor="end"))
    ridge = peak / bandwidth
    start = max(across[0], up[0] / bandwidth)
    points = f"{x(start):.1f},{y(start * bandwidth):.1f} {x(ridge):.1f},{y(peak):.1f} {right:.1f},{y(peak):.1f}"
    drawn.append(element("polyline", points=points, class_="bound"))
    text = f"{_flops(peak)} ({dtype}), {bandwidth / 1e12:.3g} TB/s"
    drawn.append(label(text, right, y(peak) - 3 if y(peak) > 20 else y(peak) + 16, class_="soft", text_anchor="end"))
    longest = max(u.time for u in shown)
    for u in shown[:150]:
        shape = "x".join(map(str, u.kernel.shape))
        told = f"{u.kernel.kind} {shape}: {_flops(u.speed)}, {u.flops / u.bytes:.3g} flop/B"
        told += f", {format_duration(u.time / u.count)} each"
        size = 3 + 13 * float(np.sqrt(u.time / longest))
        kind = (
            "dot"
            if "gemm" in u.kernel.kind or "attention" in u.kernel.kind or "conv" in u.kernel.kind
            else "dot vector"
        )
        drawn.append(
            element("circle", element("title", told), cx=x(u.flops / u.bytes), cy=y(u.speed), r=size, class_=kind)
        )
    drawn.append(
        label("flop per byte of memory traffic", (left + right) / 2, low + 38, class_="soft", text_anchor="middle")
    )
    return drawing(drawn, _WIDE, low + 46, "Roofline of the step's kernels")


def _flops(value: float) -> str:
    for scale, unit in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1e3, "kFLOP/s")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} FLOP/s"


def tornado(table: dict[str, Any], most: int = 24) -> str:
    """Bars of `sim.whatif.tornado`: to the left faster, to the right slower."""
    rows = table["elements"][:most]
    longest = max((abs(c["difference"]) for row in rows for c in row["changes"]), default=0.0) or 1.0
    middle, half = SIDE + 60 + (_WIDE - SIDE - 60) / 2, (_WIDE - SIDE - 60) / 2 - 110
    drawn = [
        label("faster", middle - 12, 12, class_="soft", text_anchor="end"),
        label("slower", middle + 12, 12, class_="soft"),
    ]
    for at, row in enumerate(rows):
        y = 22 + at * 26
        drawn.append(label(row["element"][:40], 0, y + 15))
        for change in row["changes"]:
            wide = half * abs(change["difference"]) / longest
            left = change["difference"] < 0
            told = f"{row['element']} at {change['factor']:g}x: {_signed(change['difference'])}"
            colour = "good" if left else "bad"
            drawn.append(box(middle - wide if left else middle, y, wide, 20, told, style=f"fill:var(--{colour})"))
            if wide > 1:
                place, anchor = (middle - wide - 6, "end") if left else (middle + wide + 6, "start")
                text = f"{change['factor']:g}x {_signed(change['difference'])}"
                drawn.append(label(text, place, y + 15, class_="soft", text_anchor=anchor))
    high = 26.0 + 26 * len(rows)
    drawn.append(element("line", x1=middle, x2=middle, y1=16, y2=high, class_="axis"))
    return drawing(drawn, _WIDE, high + 4, "What each element changes")


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"
