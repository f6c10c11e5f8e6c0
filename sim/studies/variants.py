"""Variants of a run: the step as it is and with each of several sets of changes, in figures to compare."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.analysis.cost import HOUR, Prices, cost_of
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, reported
from prestep.sim.spec import jobs, load, openers
from prestep.sim.spec.overrides import placing
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.host_effect import completed
from prestep.sim.studies.paired import Side
from prestep.sim.studies.whatif import Changes, beside
from prestep.sim.tools import catalog
from prestep.topologies import load_cluster
from prestep.topologies.files.bundled import cluster_names, place_of

Table = dict[str, Any]
BASE = "as it is"
BILLION = 1e9
_PLACES = ("cluster.name=", "cluster.file=")
#: A comma between two changes: what follows it is a key and its value. Commas inside a value stay where they are.
_BETWEEN = re.compile(r",(?=\s*[\w.\[\]*-]+\s*=)")


@dataclass(frozen=True)
class Asked:
    """What `--against` asks for: changes of the run, which may be another file's.

    Attributes
    ----------
    name
        As the user wrote it.
    path
        The scenario, recipe or capture.
    changes
        Items of `--set`, beside those of the base.
    """

    name: str
    path: Path
    changes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Variant:
    """A step with a set of changes, and how it compares with the base (None of the base itself)."""

    name: str
    changes: tuple[str, ...]
    scenario: Scenario
    result: Prediction
    comparison: Table | None = None

    @property
    def speed(self) -> float:
        """Tokens a second of all GPUs; steps a second where nobody knows what a step reads."""
        table = figures(self.result)
        return float(table["tokens_per_second"] or 1.0 / table["step_time"])

    def to_dict(self) -> Table:
        """Name, changes and figures, with the comparison where there is one."""
        table = {"name": self.name, "changes": list(self.changes)}
        compared = {} if self.comparison is None else {"comparison": self.comparison}
        return {**table, **figures(self.result), **compared}


def parse_against(text: str, path: Path) -> Asked:
    """Reads `[CLUSTER|FILE][,KEY=VALUE...]`; `path` is the run that is changed where no other one is named.

    Examples
    --------
    >>> parse_against("spine.bandwidth=2x,placement.by=leaf", Path("job.toml")).changes
    ('spine.bandwidth=2x', 'placement.by=leaf')
    >>> parse_against("dgx-b200,parallel.tp=4", Path("job.toml")).changes
    ('cluster.name=dgx-b200', 'parallel.tp=4')
    """
    first, *rest = (part.strip() for part in _BETWEEN.split(text))
    if "=" in first:
        return Asked(text, path, (first, *rest))
    if first in cluster_names():
        return Asked(text, path, (place_of(first), *rest))
    other = catalog.find_scenario(first)
    if not other.is_file():
        expected = "KEY=VALUE, a cluster, or a file: a scenario, a recipe, a capture"
        hint = "`prestep list clusters` shows the names"
        raise InputError.of("command line", "--against", f'"{first}"', expected, hint)
    if _is_run(other):
        return Asked(text, other, tuple(rest))
    return Asked(text, path, (place_of(str(other)), *rest))


def _is_run(path: Path) -> bool:
    """Whether a file says what runs; else it is a cluster's."""
    try:
        tables = openers.tables_of(path)
    except InputError:
        return False
    return isinstance(tables, openers.Tables) or "model" in tables


def variants_of(
    base: Scenario,
    asked: Sequence[Asked],
    overrides: Sequence[str] = (),
    prices: Prices | None = None,
) -> list[Variant]:
    """Predicts the base, and every variant beside it; the base comes first.

    ``overrides`` are changes of all of them; those of a variant come after.

    Raises
    ------
    InputError
        With the mistakes in all variants, each with its name.
    """
    jobs.refuse(base, "--against")
    changes = Changes(base)
    world = changes.base.lowered.layout.world
    changed = _loaded(asked, overrides, world)
    one = _side(changes.base)
    made = [Variant(BASE, (), base, _whole(base, *one, prices))]
    for wanted, scenario in progress.track(changed, "variants"):
        other = _side(changes.of(scenario))
        table = beside(
            (base, one[1]), (scenario, other[1]), wanted.changes, len(asked) == 1
        )
        result = _whole(scenario, *other, prices)
        made.append(Variant(wanted.name, wanted.changes, scenario, result, table))
    return made


def _loaded(
    asked: Sequence[Asked], overrides: Sequence[str], world: int
) -> list[tuple[Asked, Scenario]]:
    """The scenarios of all variants; the base has `world` ranks."""
    made, mistakes = list[tuple[Asked, Scenario]](), list[Mistake]()
    for wanted in asked:
        try:
            made.append(variant_scenario(wanted, overrides, world))
        except InputError as error:
            where = f"--against {wanted.name}"
            mistakes += [replace(mistake, where=where) for mistake in error.mistakes]
    InputError.check(mistakes)
    return made


def variant_scenario(
    wanted: Asked, overrides: Sequence[str], world: int
) -> tuple[Asked, Scenario]:
    """The scenario of a variant; on another cluster with as many GPUs as the base, where that is not said."""
    common = tuple(overrides)
    if placing(wanted.changes):
        elsewhere = placing(overrides)
        common = tuple(item for item in overrides if item not in elsewhere)
    for size in _sizes(wanted, world):
        sized = replace(wanted, changes=(*wanted.changes, size))
        with suppress(InputError):
            changes = (*common, *sized.changes)
            return sized, load.load_scenario(wanted.path, changes)
    return wanted, load.load_scenario(wanted.path, (*common, *wanted.changes))


def _sizes(wanted: Asked, world: int) -> Iterator[str]:
    """Changes with which another cluster would have so many GPUs: as many hosts as they fill, or only some GPUs."""
    stated = {change.partition("=")[0].strip() for change in wanted.changes}
    places = [c.partition("=")[2] for c in wanted.changes if c.startswith(_PLACES)]
    if places and not stated & {"cluster.hosts", "cluster.gpus"}:
        fabric = load_cluster(places[-1])
        each = len(fabric.gpus) // max(1, len(fabric.hosts))
        if each and world % each == 0 and len(fabric.gpus) != world:
            yield f"cluster.hosts={world // each}"
        yield f"cluster.gpus={world}"


def _side(planned: Planned) -> tuple[Run, Side]:
    run = execute(planned)
    return run, Side(planned, reported(planned, run, prices=True))


def _whole(
    scenario: Scenario, run: Run, side: Side, prices: Prices | None
) -> Prediction:
    result = completed(scenario, side.planned, side.result)
    return replace(result, cost=cost_of(result, prices).to_dict()) if prices else result


def figures(result: Prediction) -> Table:
    """The figures in which variants are compared; None where one is not known.

    Times are seconds, sizes bytes, energy joules of a step; ``tokens_per_second`` is that of all GPUs, of samples where
    a model has no tokens.
    """
    gpus = len(result.step_time_by_rank)
    speed = result.tokens_per_second_per_gpu * gpus
    known = math.isfinite(speed) and speed > 0
    memory, interval, near = (
        result.out_of_memory,
        result.uncertainty,
        result.expected_error,
    )
    return {
        "step_time": result.step_time,
        "gpus": gpus,
        "tokens_per_second": speed if known else None,
        "gpu_hours_per_billion": BILLION / speed * gpus / HOUR if known else None,
        "cost_per_million": result.cost["million_tokens"]
        if result.cost and result.cost["step"]
        else None,
        "energy": result.energy.step_energy if result.energy else None,
        "memory": memory.needed if memory else None,
        "fits": memory.fits if memory else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "expected_error": near["error"] if near else None,
    }


def best_of(variants: Sequence[Variant]) -> Variant | None:
    """The variant that trains fastest, of those that fit and beat the base; None where none does.

    By tokens a second, since a variant may have another batch; by the step where nobody knows what one reads.
    """
    base, *others = variants
    fitting = [one for one in others if figures(one.result)["fits"] is not False]
    best = max(fitting, key=lambda one: one.speed, default=None)
    return best if best is not None and best.speed > base.speed else None
