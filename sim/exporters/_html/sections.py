"""The report's sections: each a function of the result that gives its HTML, or "" where there is nothing to say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim.analysis import metrics
from prestep.sim.analysis.critical_path import CriticalPath, path_part
from prestep.sim.analysis.kernels import KernelUse
from prestep.sim.analysis.memory import MemoryVerdict
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import (
    pictures,
    pictures_kernels,
    pictures_links,
    pictures_time,
)
from prestep.sim.exporters._html.network import Heat, as_data, heat
from prestep.sim.exporters._html.over_time import alive, lanes, path_colour
from prestep.sim.markup import Markup, element, number, paragraph, table
from prestep.sim.units import (
    LEAST_DIFFERENCE,
    count,
    format_bytes,
    format_duration,
    percent,
)

_OWNER_COLOURS = {
    "parameters": "forward",
    "gradients": "backward",
    "optimizer": "optimizer",
    "activations": "tp",
    "buffers": "host",
    "workspace": "cp",
    "communication": "dp",
    "context": "other",
}


def embedded(name: str, data: Any) -> str:
    """Data for the script; nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id=name)


def legend(keys: list[tuple[str, str]]) -> str:
    """Colours (class of colour, text) in words."""
    items = (
        element("span", element("i", style=f"background:var(--{colour})"), text)
        for colour, text in keys
    )
    return element("div", *items, class_="keys")


def tiles(result: Prediction) -> str:
    """The first figures: each a number in large letters, and under it what else is to be said."""
    made = []
    for name, value, more in words.tiles(result):
        below = element("small", more) if more else ""
        figures = element("span", name), element("b", value), below
        made.append(element("div", *figures, class_="tile"))
    return element("div", *made, class_="tiles")


def network(result: Prediction) -> str:
    """The cluster with its links' use, and the use over time."""
    use = heat_of(result)
    if use is None:
        return ""
    rank, begin, end = _drawn_step(result)
    return (
        paragraph(element("b", "Bottleneck: "), bottleneck(result))
        + _moments(use.mean.shape[1])
        + _whose_step(rank, end - begin, result.step_time)
        + pictures_links.cluster(use)
        + pictures_links.heat_map(use, end - begin)
        + pictures_links.scale()
        + _busiest_links(result)
        + embedded("network-data", _network_data(use, end - begin))
    )


def _drawn_step(result: Prediction) -> tuple[int, float, float]:
    """A rank, and when its last step begins and ends."""
    assert result.details is not None and result.timeline is not None
    rank = next(iter(result.details.represents))
    step = int(result.timeline.steps[-1])
    return rank, *metrics.step_window(result.timeline, rank, step)


def heat_of(result: Prediction) -> Heat | None:
    """The use of links in the last step; None where nothing moved, or nobody kept it."""
    if result.details is None or result.timeline is None or not result.links:
        return None
    return heat(result.details, _drawn_step(result)[1:])


def bottleneck(result: Prediction) -> str:
    """The links that are full for longest, and those whose bandwidth is worth most; or that none matters."""
    prices = {kind.kind: kind.shadow_price or 0.0 for kind in result.link_kinds}
    full = max(result.link_kinds, key=lambda kind: kind.held, default=None)
    best = max(prices, key=prices.__getitem__, default="")
    if full is None or (full.held <= 0 and prices[best] <= LITTLE):
        return "no link holds a transfer back."
    worth = f"1 % more bandwidth saves {words.price(prices[best])}"
    if full.held < LONG * result.step_time:
        matters = f"; {best} matters most: {worth}" if prices[best] > LITTLE else ""
        return f"no link is full for long{matters}."
    told = f"{full.kind} is full for {format_duration(full.held)} of the step"
    if full.shadow_price is None:
        return f"{told}."
    if prices[full.kind] <= LITTLE:
        return f"{told}; more bandwidth saves nothing."
    saves = words.price(prices[full.kind])
    if best == full.kind:
        return f"{told}; 1 % more bandwidth saves {saves}."
    of_best = f"of {best} {words.price(prices[best])}"
    return f"{told}; 1 % more bandwidth of {full.kind} saves {saves}, {of_best}."


def _whose_step(rank: int, length: float, step: float) -> str:
    """Of which rank the drawn step is, where its length is not the step time."""
    if not step or abs(length / step - 1) <= _APART:
        return ""
    said = f"Drawn is the last step of rank {rank}, {format_duration(length)}"
    return paragraph(
        f"{said}; the step time, {format_duration(step)}, is that of the slowest rank."
    )


def _moments(parts: int) -> str:
    """What the drawing shows, and the slider over the parts of the step."""
    return Markup(
        "<p>Identical parts are drawn once. The busier a link is, the stronger its colour, and a full link is red: "
        "over the whole step, or at the moment that the slider shows. The rows below show all moments.</p>"
        f'<div class="bar"><label for="moment" class="soft">moment</label>'
        f'<input id="moment" type="range" min="0" max="{parts}" '
        'value="0"><span id="when" role="status">whole step</span></div>'
    )


def _busiest_links(result: Prediction) -> str:
    priced = any(words.saved(link) for link in result.links)
    alike: dict[tuple[str, ...], list[str]] = {}
    for link in result.links:
        figures = (
            percent(link.utilisation),
            percent(link.peak),
            format_bytes(link.bytes),
            *([words.saved(link) or "-"] if priced else []),
        )
        alike.setdefault(figures, []).append(link.name)
    rows = [(_first_of(names), *figures) for figures, names in alike.items()]
    heads = ("busiest links", "busy", "at most", "carried", "1 % faster saves")
    return table(heads if priced else heads[:-1], rows)


def _first_of(names: Sequence[str]) -> str:
    """Names whose figures are the same, in one row."""
    more = f" and {len(names) - 1} alike" if len(names) > 1 else ""
    return names[0] + more


def _network_data(use: Heat, length: float) -> dict[str, Any]:
    """What the script needs to move the slider: the uses, and a part's time in ns."""
    return {**as_data(use), "part": length / use.mean.shape[1] * 1e9}


def kernels(result: Prediction) -> str:
    """Roofline, and the kernels that take most time."""
    if result.details is None:
        return ""
    uses, gpu = result.details.kernels, result.details.gpu
    whole = sum(use.time for use in uses)
    if not whole:
        return ""
    precision = result.details.job.precision
    picture = pictures_kernels.roofline(uses, gpu, precision)
    if others := pictures_kernels.bandwidths(uses, gpu):
        picture += paragraph("Kernels that only move memory:") + others
    if picture:
        text = (
            "A dot is one kernel and shape; its area is its share of the kernel time."
        )
        picture = paragraph(text) + picture
    rows = [_kernel_row(use, whole) for use in uses[:15]]
    return picture + table(_KERNEL_HEADS, rows, texts=2)


_KERNEL_HEADS = (
    "kernel",
    "shape",
    "times",
    "of kernel time",
    "each",
    "TFLOP/s",
    "TB/s",
    "of the roofline",
    "evidence",
)


def _shape(shape: Sequence[int]) -> str:
    """`4096 x 1024 x 8192`; elements of a kernel that only moves them."""
    if len(shape) == 1:
        return f"{count(shape[0])} elements"
    return " x ".join(map(str, shape))


def _kernel_row(use: KernelUse, whole: float) -> tuple[str, ...]:
    """Cells under `_KERNEL_HEADS`; `whole` is the time of all kernels."""
    return (
        use.kernel.kind,
        _shape(use.kernel.shape),
        count(use.count),
        percent(use.time / whole),
        format_duration(use.time / use.count) if use.count else "-",
        f"{use.speed / 1e12:.3g}" if use.flops else "-",
        f"{use.rate / 1e12:.3g}",
        percent(use.bound * use.count / use.time),
        use.evidence,
    )


def memory(result: Prediction) -> str:
    """The fullest rank's peak by owner, against the GPU's memory."""
    rows, verdict = list(words.memory(result)), result.out_of_memory
    if verdict is None or not rows:
        return ""
    parts = [
        (owner, size, _OWNER_COLOURS.get(owner, "other"), format_bytes(size))
        for owner, size in rows
    ]
    whole = max(verdict.capacity or 0.0, verdict.needed)
    cells = [
        (owner, format_bytes(size), percent(size / verdict.needed))
        for owner, size in rows
        if size >= SMALLEST * verdict.needed
    ]
    bar = pictures.stacked(parts, "Memory at its peak by owner", whole)
    seen = [part for part in parts if part[1] >= SMALLEST * whole]
    keys = legend([(colour, owner) for owner, _, colour, _ in seen])
    head = paragraph(f"{words.memory_verdict(result)}.")
    return (
        head
        + bar
        + keys
        + _over_time(result, verdict)
        + table(("owner", "size", "of the peak"), cells)
    )


def _over_time(result: Prediction, verdict: MemoryVerdict) -> str:
    """The same rank's memory over the last step."""
    owned = None if result.details is None else alive(result.details, verdict.rank)
    if owned is None or verdict.host is not None:
        return ""
    room = None if verdict.capacity is None else verdict.capacity - verdict.outside
    text = (
        f"What the allocator of rank {verdict.rank} has handed out in the last step, "
        "where the GPU computes what was "
    )
    beside = ""
    if verdict.outside:
        size = format_bytes(verdict.outside)
        beside = f" {size} more, of the peak above, lie outside of the allocator."
    keys = legend(
        [(_OWNER_COLOURS.get(owner, "other"), owner) for owner in owned.owners]
    )
    return (
        paragraph(f"{text}issued with it.{beside}")
        + pictures_time.memory(owned, _OWNER_COLOURS, room)
        + keys
    )


def critical(result: Prediction) -> str:
    """What the end of the step waited for, through all ranks."""
    path = result.critical_path
    if path is None or not path.segments:
        return ""
    summary = path.to_dict()
    strip = lanes(path)
    parts = [_path_part(part) for part in summary["parts"]]
    colours = dict.fromkeys(colour for _, _, colour, _ in parts)
    return (
        _path_head(path, summary, len(strip))
        + pictures.stacked(parts, "Parts of the critical path")
        + legend([(colour, _PATH_WORDS.get(colour, colour)) for colour in colours])
        + pictures_time.path(strip, path.length)
        + _path_parts(_folded(summary["parts"]))
        + _longest(summary["longest"], path.length)
    )


def _path_part(part: Mapping[str, Any]) -> tuple[str, float, str, str]:
    """A part of the path for the bar: what, seconds, class of colour, text."""
    colour = path_colour(part["kind"], part["axis"], part["family"])
    seconds = part["seconds"]
    return path_part(part), seconds, colour, format_duration(seconds)


def _path_head(path: CriticalPath, summary: Mapping[str, Any], lanes: int) -> str:
    ranks = len(summary["ranks"])
    head = paragraph(
        "What the end of the step waited for, walked back through all ranks; what is not on it has slack. "
        f"{format_duration(path.length)}, {number(summary['segments'])} stretches on "
        f"{ranks} simulated rank{'s' if ranks != 1 else ''}."
    )
    if lanes > pictures_time.MOST_LANES:
        head += paragraph(f"The first {pictures_time.MOST_LANES} ranks are drawn.")
    return head


# Relative difference from the step time from which on a section says why its length is another.
_APART = 1e-3
# Share of the whole below which a row would say 0.0 %.
SMALLEST = 5e-4
LITTLE = 1e-6  # s: nobody would act on less
LONG = 0.01  # of the step: links that are full for less do not bound it


def _amounts(times: int, seconds: float, share: float) -> tuple[str, str, str]:
    return count(times), format_duration(seconds), percent(share)


def _folded(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts with one row for what several groups of ranks do alike."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for part in parts:
        key = part["kind"], part["family"], part["axis"]
        alike.setdefault(key, []).append(part)
    rows = []
    for same in alike.values():
        row = dict(same[0])
        for amount in ("count", "seconds", "share"):
            row[amount] = sum(part[amount] for part in same)
        if len(same) > 1:
            row["group"] = f"{len(same)} groups"
        rows.append(row)
    return sorted(rows, key=lambda row: -row["seconds"])


def _path_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    shown = [part for part in parts[:12] if part["share"] >= SMALLEST]
    rows = [
        (path_part(part), *_amounts(part["count"], part["seconds"], part["share"]))
        for part in shown
    ]
    if rest := parts[len(shown) :]:
        sums = [sum(part[key] for part in rest) for key in ("count", "seconds", "share")]  # fmt: skip
        if sums[-1] >= SMALLEST:
            rows.append((f"{len(rest)} more", *_amounts(*sums)))
    return table(("part", "stretches", "time", "of the path"), rows)


def _longest(operations: Sequence[Mapping[str, Any]], length: float) -> str:
    rows = [
        (
            operation["name"],
            operation["kind"],
            format_duration(operation["seconds"]),
            percent(operation["seconds"] / length),
        )
        for operation in operations
    ]
    return table(("longest by name", "kind", "time", "of the path"), rows, texts=2)


_PATH_WORDS = {
    "forward": "products, layers",
    "backward": "attention",
    "optimizer": "optimizer",
    "memory": "other kernels",
    "wait": "waiting (gaps, launches)",
    "other": "other communication",
    "io": "data loading",
}


def whatif(tornado: dict[str, Any] | None) -> str:
    """The step with every element of the cluster faster and slower."""
    if not tornado:
        return ""
    more = paragraph(tornado["note"]) if tornado.get("note") else ""
    if not tornado["elements"]:
        return more
    factors = " and ".join(f"{factor:g}x" for factor in tornado["factors"])
    base = format_duration(tornado["step_time"])
    head = f"The step of {base} with one element at a time at {factors}."
    moving = [row for row in tornado["elements"] if row["effect"] >= LEAST_DIFFERENCE]
    still = [
        row.get("label") or row["element"] for row in tornado["elements"][len(moving) :]
    ]
    rest = paragraph(f"Without effect: {', '.join(still)}.") if still else ""
    bars = pictures.tornado({**tornado, "elements": moving}) if moving else ""
    return paragraph(head) + bars + rest + more


def scenario(result: Prediction) -> str:
    """What was run."""
    summary = {
        **result.scenario,
        "name": Path(str(result.scenario.get("name", ""))).name,
    }
    rows = [
        (key.replace("_", " "), count(value) if isinstance(value, int) else str(value))
        for key, value in summary.items()
        if value not in (None, "")
    ]
    return table(("key", "value"), rows, texts=2) if rows else ""
