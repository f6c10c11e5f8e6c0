"""Where a recorded program runs fastest, or for the least money: its layout is its own, only the place is searched."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.analysis.json_text import finite
from sim.analysis.prediction import Prediction
from sim.errors import PrestepError
from sim.predict import execute, plan, reported
from sim.spec.captured import GPU, PLACE, key_of
from sim.spec.load import load_scenario
from sim.units import format_bytes, format_duration, percent
from topologies import gpu_models
from workloads.lowered import Lowered

Prices = Mapping[str, float]  # of a GPU for an hour, by model; "": of every other
Grid = Mapping[str, Sequence[str]]
STEPS = 1000  # that a cost is of


@dataclass(frozen=True)
class Place:
    """A cluster with its changes: what the program takes there, or why it cannot run."""

    changes: tuple[tuple[str, str], ...]
    result: Prediction | None = None
    error: str = ""

    @property
    def fits(self) -> bool:
        verdict = None if self.result is None else self.result.out_of_memory
        return self.result is not None and (verdict is None or verdict.fits)

    def cost(self, prices: Prices) -> float | None:
        """Of a thousand steps, in the currency of the prices; None where nobody said what its GPUs cost."""
        if self.result is None:
            return None
        summary = self.result.scenario
        price = prices.get(str(summary["gpu"]), prices.get(""))
        if price is None:
            return None
        hours = self.result.step_time * STEPS / 3600
        return price * int(str(summary["gpus"])) * hours


def grid_with_places(grid: Grid, overrides: Sequence[str]) -> Grid:
    """What to try; a cluster for every model of GPU, where no place was named."""
    named = {*grid, *map(key_of, overrides)}
    return grid if named & set(PLACE) else {GPU: gpu_models(), **grid}


def places(path: Path, grid: Grid, overrides: Sequence[str]) -> Iterator[Place]:
    """The program in every place of a grid; the step is lowered once for hosts and GPUs that are alike."""
    lowered: Lowered | None = None
    for values in itertools.product(*grid.values()):
        changes = tuple(zip(grid, values, strict=True))
        items = [*overrides, *(f"{key}={value}" for key, value in changes)]
        try:
            planned = plan(load_scenario(path, items), lowered=lowered)
            lowered = planned.lowered
            yield Place(changes, reported(planned, execute(planned)))
        except PrestepError as error:
            yield Place(changes, error=str(error))


def ranked(found: Sequence[Place], prices: Prices) -> list[Place]:
    """Those that fit: the cheapest first where there are prices, else the fastest."""

    def order(place: Place) -> tuple[float, float]:
        cost = place.cost(prices) if prices else 0.0
        time = place.result.step_time if place.result else 0.0
        return (float("inf") if cost is None else cost), time

    return sorted((place for place in found if place.fits), key=order)


def table(found: Sequence[Place], prices: Prices, top: int) -> str:
    """The ranking, and what became of the other places."""
    best = ranked(found, prices)
    head = ["", "cluster", "GPU", "step time", "MFU", "memory", "evidence"]
    head += ["1,000 steps"] if prices else []
    rows = [_cells(at, place, prices) for at, place in enumerate(best[:top], 1)]
    lines = _aligned([head, *rows]) if rows else ["the program fits nowhere"]
    return "\n".join([*lines, *_others(found, len(best) - top)])


def _cells(at: int, place: Place, prices: Prices) -> list[str]:
    result = place.result
    assert result is not None
    verdict, evidence = result.out_of_memory, result.evidence
    grounded = evidence.get("measured", 0.0) + evidence.get("fitted", 0.0)
    cells = [
        str(at),
        _where(place),
        str(result.scenario["gpu"]),
        format_duration(result.step_time),
        percent(result.mfu),
        format_bytes(verdict.needed) if verdict is not None else "-",
        percent(grounded),
    ]
    if not prices:
        return cells
    cost = place.cost(prices)
    return [*cells, "no price" if cost is None else f"{cost:.4g}"]


def _where(place: Place) -> str:
    """The cluster, and what else was changed."""
    assert place.result is not None
    others = [f"{key}={value}" for key, value in place.changes if key not in PLACE]
    return " ".join([str(place.result.scenario["cluster"]), *others])


def _others(found: Sequence[Place], more: int) -> Iterator[str]:
    if more > 0:
        yield f"and {more} slower" if more > 1 else "and one slower"
    yield "evidence: share of the time that rests on what was measured or fitted"
    for place in found:
        said = " ".join(value for _, value in place.changes)
        verdict = None if place.result is None else place.result.out_of_memory
        if place.error:
            yield f"{said}: {place.error.splitlines()[0]}"
        elif verdict is not None and not verdict.fits:
            needed = format_bytes(verdict.needed)
            yield f"{said}: does not fit, {needed} of {format_bytes(verdict.capacity or 0.0)}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns; the second to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[1] = row[1].ljust(widths[1])
        lines.append("  ".join(cells).rstrip())
    return lines


def to_dict(found: Sequence[Place], prices: Prices, top: int) -> dict[str, Any]:
    """The same for programs, in SI units."""
    best = ranked(found, prices)[:top]
    plain: Mapping[str, Any] = {
        "ranked": [_entry(place, prices) for place in best],
        "refused": [
            {"changes": dict(place.changes), "error": place.error}
            for place in found
            if place.error
        ],
        "does_not_fit": [
            dict(place.changes)
            for place in found
            if place.result is not None and not place.fits
        ],
    }
    made: dict[str, Any] = finite(plain)
    return made


def _entry(place: Place, prices: Prices) -> dict[str, Any]:
    result = place.result
    assert result is not None
    verdict, summary = result.out_of_memory, result.scenario
    entry = {
        "changes": dict(place.changes),
        **{key: summary[key] for key in ("cluster", "gpu", "gpus")},
        "step_time": result.step_time,
        "mfu": result.mfu,
        "peak_memory": None if verdict is None else verdict.needed,
        "breakdown": dict(result.breakdown),
        "evidence": dict(result.evidence),
    }
    cost = place.cost(prices) if prices else None
    return entry if cost is None else {**entry, "cost_per_thousand_steps": cost}
