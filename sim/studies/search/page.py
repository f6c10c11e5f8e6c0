"""The ranking of a search as tables of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prestep.sim.exporters._sheets import Sheet
from prestep.sim.units import count, format_bytes, format_duration, percent

_COUNTS = {
    "valid": "valid layouts",
    "simulated": "simulated",
    "too_large": "do not fit",
    "too_slow": "cannot be among the best: their kernels alone take longer",
}


def sheets(table: Mapping[str, Any]) -> tuple[str, list[Sheet]]:
    """The answer and the tables, from what `words.to_dict` returns."""
    ranked = table["ranked"]
    rows = [_row(at, entry) for at, entry in enumerate(ranked, 1)]
    heads = ("", "layout", "why", "step", "MFU", "tokens/s/GPU", "memory")
    counts = [(what, count(table[key])) for key, what in _COUNTS.items()]
    answer = "No layout fits."
    if ranked:
        best, by = ranked[0], table["ranked_by"]
        which = "fastest" if by == "time" else f"best by {by}"
        step = format_duration(best["step_time"])
        answer = f"The {which} layout that fits: {best['layout']}, {step} a step."
    looked = Sheet("What was looked at", ("layouts", "how many"), counts)
    return answer, [Sheet("Layouts, the best first", heads, rows, texts=3), looked]


def _row(at: int, entry: Mapping[str, Any]) -> tuple[str, ...]:
    memory, mfu = entry["peak_memory"], entry["mfu"]
    return (
        str(at),
        entry["layout"],
        entry["why"],
        format_duration(entry["step_time"]),
        "-" if mfu is None else percent(mfu),
        count(entry["tokens_per_second_per_gpu"]),
        "-" if memory is None else format_bytes(memory),
    )
