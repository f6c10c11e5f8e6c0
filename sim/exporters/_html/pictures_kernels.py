"""Drawings of kernels: the roofline of those that calculate, and how near the others come to the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10, sqrt

from sim.analysis.kernels import KernelUse
from sim.costs import Gpu
from sim.exporters._html.svg import decades, drawing, element, label
from sim.units import format_duration

_WIDE = 1100.0
_LEFT, _RIGHT, _TOP, _LOW = 90.0, 1080.0, 14.0, 360.0
MOST = 150  # kernels in a picture
_FEW = 3  # powers of ten up to which an axis has 2 and 5 between them


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis between two powers of ten, and where it lies in the picture."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.begin + (self.end - self.begin) * log10(value / self.low) / log10(
            self.high / self.low
        )

    def ticks(self) -> list[float]:
        powers = decades(self.low, self.high)
        between = (1.0, 2.0, 5.0) if len(powers) <= _FEW else (1.0,)
        return [
            v
            for power in powers
            for k in between
            if (v := k * power) <= self.high * 1.001
        ]


def roofline(uses: Sequence[KernelUse], gpu: Gpu, dtype: str) -> str:
    """Kernels that calculate: flop/s over flop per byte, area by time, under the GPU's limits for their formats."""
    shown = [u for u in uses if u.flops > 0 and u.bytes > 0 and u.count > 0]
    if not shown:
        return ""
    present = dict.fromkeys([dtype, *(u.kernel.dtype for u in shown)])
    peaks = {name: gpu.roofline.peak_of(name) for name in present}
    ridge = max(peaks.values()) / gpu.bandwidth
    xs = [u.flops / u.bytes for u in shown]
    across = decades(min([*xs, ridge / 2]), max([*xs, ridge * 2]))
    up = decades(
        max(min(u.speed for u in shown), max(peaks.values()) * 1e-7),
        max(peaks.values()),
    )
    x, y = _Axis(across[0], across[-1], _LEFT, _RIGHT), _Axis(up[0], up[-1], _LOW, _TOP)
    drawn = _grid(x, y) + [
        part
        for name, peak in peaks.items()
        for part in _bound(x, y, name, peak, gpu.bandwidth)
    ]
    longest = max(u.time for u in shown)
    for u in shown[:MOST]:
        told = (
            f"{_name(u)}: {_flops(u.speed)}, {u.flops / u.bytes:.3g} flop/B, "
            f"{format_duration(u.time / u.count)} each"
        )
        drawn.append(_dot(u, x(u.flops / u.bytes), y(u.speed), longest, told, "dot"))
    said = label(
        "flop per byte of memory traffic",
        (_LEFT + _RIGHT) / 2,
        _LOW + 38,
        class_="soft",
        text_anchor="middle",
    )
    return drawing([*drawn, said], _WIDE, _LOW + 46, "Roofline of the step's kernels")


def _grid(x: _Axis, y: _Axis) -> list[str]:
    drawn = []
    for v in x.ticks():
        drawn.append(element("line", x1=x(v), x2=x(v), y1=_TOP, y2=_LOW, class_="grid"))
        drawn.append(
            label(f"{v:g}", x(v), _LOW + 18, class_="soft", text_anchor="middle")
        )
    for v in y.ticks():
        drawn.append(
            element("line", x1=_LEFT, x2=_RIGHT, y1=y(v), y2=y(v), class_="grid")
        )
        drawn.append(
            label(_flops(v), _LEFT - 8, y(v) + 4, class_="soft", text_anchor="end")
        )
    return drawn


def _bound(x: _Axis, y: _Axis, name: str, peak: float, bandwidth: float) -> list[str]:
    """The limit of a format: the memory's bandwidth up to the ridge, then its peak."""
    start = max(x.low, y.low / bandwidth)
    points = (
        f"{x(start):.1f},{y(start * bandwidth):.1f} "
        f"{x(peak / bandwidth):.1f},{y(peak):.1f} {_RIGHT:.1f},{y(peak):.1f}"
    )
    text, high = f"{_flops(peak)} {name}, {bandwidth / 1e12:.3g} TB/s", y(peak)
    place = high - 5 if high > _TOP + 14 else high + 16
    said = label(text, _RIGHT - 4, place, class_="soft halo", text_anchor="end")
    return [element("polyline", points=points, class_="bound"), said]


def bandwidths(uses: Sequence[KernelUse], gpu: Gpu) -> str:
    """Kernels that only move memory, on one line by the share of the memory's bandwidth that they reach."""
    shown = [
        u for u in uses if not u.flops and u.bytes > 0 and u.count > 0 and u.time > 0
    ][:MOST]
    if not shown:
        return ""
    longest, middle, low = max(u.time for u in shown), 26.0, 50.0
    drawn = [element("line", x1=_LEFT, x2=_RIGHT, y1=middle, y2=middle, class_="grid")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + (_RIGHT - _LEFT) * share
        drawn.append(
            element(
                "line",
                x1=x,
                x2=x,
                y1=8,
                y2=low - 6,
                class_="grid" if share < 1 else "bound",
            )
        )
        drawn.append(
            label(
                f"{100 * share:.0f} %", x, low + 8, class_="soft", text_anchor="middle"
            )
        )
    for u in shown:
        share = min(1.0, u.rate / gpu.bandwidth)
        told = f"{_name(u)}: {u.rate / 1e12:.3g} TB/s, {format_duration(u.time / u.count)} each"
        drawn.append(
            _dot(
                u, _LEFT + (_RIGHT - _LEFT) * share, middle, longest, told, "dot vector"
            )
        )
    text = f"of the memory's {gpu.bandwidth / 1e12:.3g} TB/s"
    drawn.append(
        label(text, (_LEFT + _RIGHT) / 2, low + 26, class_="soft", text_anchor="middle")
    )
    return drawing(drawn, _WIDE, low + 34, "Share of the memory's bandwidth by kernel")


def _name(u: KernelUse) -> str:
    return f"{u.kernel.kind} {'x'.join(map(str, u.kernel.shape))}"


def _dot(u: KernelUse, x: float, y: float, longest: float, told: str, kind: str) -> str:
    size = 3 + 13 * sqrt(u.time / longest)
    return element("circle", element("title", told), cx=x, cy=y, r=size, class_=kind)


def _flops(value: float) -> str:
    for scale, unit in (
        (1e15, "PFLOP/s"),
        (1e12, "TFLOP/s"),
        (1e9, "GFLOP/s"),
        (1e6, "MFLOP/s"),
        (1e3, "kFLOP/s"),
    ):
        if value >= 0.9999 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} FLOP/s"
