"""Drawings of kernels: the roofline of those that calculate, and how near the others come to the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10, sqrt

from prestep.sim import markup
from prestep.sim.analysis.kernels import KernelUse
from prestep.sim.costs import Gpu
from prestep.sim.units import format_duration

_LEFT, _MARGIN, _TOP, _LOW = 90.0, 20.0, 14.0, 360.0
_MIDDLE, _LINE_LOW = 26.0, 50.0  # of the picture of bandwidths
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
        powers = markup.decades(self.low, self.high)
        between = (1.0, 2.0, 5.0) if len(powers) <= _FEW else (1.0,)
        return [
            v
            for power in powers
            for k in between
            if (v := k * power) <= self.high * 1.001
        ]


def roofline(uses: Sequence[KernelUse], gpu: Gpu, dtype: str) -> markup.Markup:
    """Kernels that calculate: flop/s over flop per byte, area by time, under the GPU's limits for their formats."""
    return markup.for_each_window(lambda wide: _roofline(uses, gpu, dtype, wide))


def _roofline(uses: Sequence[KernelUse], gpu: Gpu, dtype: str, wide: float) -> str:
    shown = [use for use in uses if min(use.flops, use.bytes, use.count) > 0]
    if not shown:
        return ""
    formats = dict.fromkeys([dtype, *(use.kernel.dtype for use in shown)])
    peaks = {name: gpu.roofline.peak_of(name) for name in formats}
    highest = max(peaks.values())
    x = _intensity_axis(shown, highest / gpu.bandwidth, wide - _MARGIN)
    y = _speed_axis(shown, highest)
    drawn = _grid(x, y)
    for name, peak in peaks.items():
        drawn += _bound(x, y, name, peak, gpu.bandwidth)
    longest = max(use.time for use in shown)
    drawn += [_calculation(use, x, y, longest) for use in shown[:MOST]]
    drawn.append(_caption("flop per byte of memory traffic", wide, _LOW + 38))
    return markup.drawing(drawn, wide, _LOW + 46, "Roofline of the step's kernels")


def _calculation(use: KernelUse, x: _Axis, y: _Axis, longest: float) -> markup.Markup:
    """The dot of a kernel in the roofline."""
    intensity = use.flops / use.bytes
    each = format_duration(use.time / use.count)
    tooltip = f"{_name(use)}: {_flops(use.speed)}, {intensity:.3g} flop/B, {each} each"
    return _dot(use, x(intensity), y(use.speed), longest, tooltip, "dot")


def _intensity_axis(shown: Sequence[KernelUse], ridge: float, right: float) -> _Axis:
    """Flop per byte: all kernels, and both sides of the ridge where the limits meet."""
    values = [use.flops / use.bytes for use in shown]
    powers = markup.decades(min([*values, ridge / 2]), max([*values, ridge * 2]))
    return _Axis(powers[0], powers[-1], _LEFT, right)


def _speed_axis(shown: Sequence[KernelUse], peak: float) -> _Axis:
    """Flop/s up to the peak; what is slower than a ten-millionth of it lies on the axis."""
    slowest = min(use.speed for use in shown)
    powers = markup.decades(max(slowest, peak * 1e-7), peak)
    return _Axis(powers[0], powers[-1], _LOW, _TOP)


def _grid(x: _Axis, y: _Axis) -> list[markup.Markup]:
    drawn = []
    for tick in x.ticks():
        at = x(tick)
        drawn.append(markup.vertical(at, _TOP, _LOW, class_="grid"))
        drawn.append(
            markup.label(
                f"{tick:g}", at, _LOW + 18, class_="soft", text_anchor="middle"
            )
        )
    for tick in y.ticks():
        at = y(tick)
        drawn.append(markup.horizontal(at, x.begin, x.end, class_="grid"))
        drawn.append(
            markup.label(
                _flops(tick), _LEFT - 8, at + 4, class_="soft", text_anchor="end"
            )
        )
    return drawn


def _bound(
    x: _Axis, y: _Axis, name: str, peak: float, bandwidth: float
) -> list[markup.Markup]:
    """The limit of a format: the memory's bandwidth up to the ridge, then its peak."""
    start = max(x.low, y.low / bandwidth)
    points = (
        f"{x(start):.1f},{y(start * bandwidth):.1f} "
        f"{x(peak / bandwidth):.1f},{y(peak):.1f} {x.end:.1f},{y(peak):.1f}"
    )
    text, high = f"{_flops(peak)} {name}, {bandwidth / 1e12:.3g} TB/s", y(peak)
    place = high - 5 if high > _TOP + 14 else high + 16
    said = markup.label(text, x.end - 4, place, class_="soft halo", text_anchor="end")
    return [markup.element("polyline", points=points, class_="bound"), said]


def bandwidths(uses: Sequence[KernelUse], gpu: Gpu) -> str:
    """Kernels that only move memory, on one line by the share of the memory's bandwidth that they reach."""
    shown = [use for use in uses if _only_moves_memory(use)][:MOST]
    if not shown:
        return ""
    return markup.for_each_window(lambda wide: _bandwidths(shown, gpu, wide))


def _bandwidths(shown: Sequence[KernelUse], gpu: Gpu, wide: float) -> markup.Markup:
    drawn = _share_scale(wide)
    longest = max(use.time for use in shown)
    for use in shown:
        x = _share_place(min(1.0, use.rate / gpu.bandwidth), wide)
        each = format_duration(use.time / use.count)
        tooltip = f"{_name(use)}: {use.rate / 1e12:.3g} TB/s, {each} each"
        drawn.append(_dot(use, x, _MIDDLE, longest, tooltip, "dot vector"))
    text = f"of the memory's {gpu.bandwidth / 1e12:.3g} TB/s"
    drawn.append(_caption(text, wide, _LINE_LOW + 26))
    name = "Share of the memory's bandwidth by kernel"
    return markup.drawing(drawn, wide, _LINE_LOW + 34, name)


def _only_moves_memory(use: KernelUse) -> bool:
    return not use.flops and use.bytes > 0 and use.count > 0 and use.time > 0


def _share_scale(wide: float) -> list[markup.Markup]:
    """The line of shares, with a mark at every quarter."""
    drawn = [markup.horizontal(_MIDDLE, _LEFT, wide - _MARGIN, class_="grid")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, kind = _share_place(share, wide), "grid" if share < 1 else "bound"
        drawn.append(markup.vertical(x, 8, _LINE_LOW - 6, class_=kind))
        text = f"{100 * share:.0f} %"
        drawn.append(
            markup.label(text, x, _LINE_LOW + 8, class_="soft", text_anchor="middle")
        )
    return drawn


def _share_place(share: float, wide: float) -> float:
    return _LEFT + (wide - _MARGIN - _LEFT) * share


def _caption(text: str, wide: float, y: float) -> markup.Markup:
    """What an axis shows, under its middle."""
    return markup.label(
        text, (_LEFT + wide - _MARGIN) / 2, y, class_="soft", text_anchor="middle"
    )


def _name(use: KernelUse) -> str:
    return f"{use.kernel.kind} {'x'.join(map(str, use.kernel.shape))}"


def _dot(
    use: KernelUse, x: float, y: float, longest: float, tooltip: str, kind: str
) -> markup.Markup:
    """A kernel whose area grows with its time; `longest` is the time of the largest."""
    radius = 3 + 13 * sqrt(use.time / longest)
    return markup.element(
        "circle", markup.element("title", tooltip), cx=x, cy=y, r=radius, class_=kind
    )


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
