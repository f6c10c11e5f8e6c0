"""Where a recorded program runs fastest, or for the least money: its layout is its own, only the place is searched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim.analysis.cost import Prices, cost_of
from prestep.sim.analysis.json_text import finite
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import PrestepError
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.overrides import GPU, PLACE, key_of
from prestep.sim.studies.ranking import COST, ENERGY, TIME, objective_of
from prestep.sim.units import aligned, format_bytes, format_duration, percent
from prestep.topologies import gpu_models
from prestep.workloads.lowered import Lowered

Grid = Mapping[str, Sequence[str]]
STEPS = 1000  # that a cost is of


@dataclass(frozen=True)
class Asked:
    """What places are ranked by, and prices: of GPUs for an hour by model ("": of every other), and of energy."""

    by: str
    gpus: Mapping[str, float]
    energy: Prices

    @property
    def priced(self) -> bool:
        return bool(self.gpus) or self.energy.kilowatt_hour is not None

    def of(self, gpu: str) -> Prices | None:
        """The prices of a place with such GPUs; None where nobody said what they cost."""
        price = self.gpus.get(gpu, self.gpus.get(""))
        return (
            None
            if self.gpus and price is None
            else replace(self.energy, gpu_hour=price)
        )


def asked(by: str | None, gpus: Mapping[str, float], energy: Prices) -> Asked:
    """What a command line asks for: the cheapest where there are prices, else the fastest, unless it says `by`.

    Raises
    ------
    InputError
        If costs are to be ranked and nothing has a price.
    """
    some = next(iter(gpus.values()), None)
    priced = bool(gpus) or energy.kilowatt_hour is not None
    chosen = by or (COST if priced else TIME)
    objective_of(chosen, replace(energy, gpu_hour=some))
    return Asked(chosen, gpus, energy)


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

    def cost(self, asked: Asked) -> float | None:
        """Of a thousand steps, in the currency of the prices; None where nobody said what its GPUs cost or draw."""
        if self.result is None:
            return None
        prices = asked.of(str(self.result.scenario["gpu"]))
        if prices is None:
            return None
        cost = cost_of(self.result, prices)
        unknown = prices.kilowatt_hour is not None and cost.energy is None
        return None if unknown else STEPS * cost.step

    def score(self, asked: Asked) -> float:
        """What is ranked; inf where it is not known."""
        if self.result is None:
            return math.inf
        if asked.by == TIME:
            return self.result.step_time
        if asked.by == ENERGY:
            energy = self.result.energy
            return math.inf if energy is None else energy.step_energy
        cost = self.cost(asked)
        return math.inf if cost is None else cost


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


def ranked(found: Sequence[Place], asked: Asked) -> list[Place]:
    """Those that fit, the best first; of equal ones the fastest."""

    def order(place: Place) -> tuple[float, float]:
        time = place.result.step_time if place.result else 0.0
        return place.score(asked), time

    return sorted((place for place in found if place.fits), key=order)


def table(found: Sequence[Place], asked: Asked, top: int) -> str:
    """The ranking, and what became of the other places."""
    best = ranked(found, asked)
    head = ["", "cluster", "GPU", "step time", "MFU", "memory", "evidence"]
    head += ["energy"] if asked.by == ENERGY else []
    head += ["1,000 steps"] if asked.priced else []
    rows = [_cells(at, place, asked) for at, place in enumerate(best[:top], 1)]
    lines = aligned([head, *rows], left=(1,)) if rows else ["the program fits nowhere"]
    return "\n".join([*lines, *_others(found, len(best) - top)])


def _cells(at: int, place: Place, asked: Asked) -> list[str]:
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
    if asked.by == ENERGY:
        energy = result.energy
        cells.append("-" if energy is None else f"{energy.step_energy:.4g} J")
    if not asked.priced:
        return cells
    cost = place.cost(asked)
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


def to_dict(found: Sequence[Place], asked: Asked, top: int) -> dict[str, Any]:
    """The same for programs, in SI units."""
    best = ranked(found, asked)[:top]
    plain: Mapping[str, Any] = {
        "ranked": [_entry(place, asked) for place in best],
        "ranked_by": asked.by,
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


def _entry(place: Place, asked: Asked) -> dict[str, Any]:
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
        "energy": None if result.energy is None else result.energy.to_dict(),
    }
    cost = place.cost(asked) if asked.priced else None
    return entry if cost is None else {**entry, "cost_per_thousand_steps": cost}
