"""What sections of extensions add to a training step: time that it waits for something, and what comes after it.

An effect is a module under the entry point group `prestep.effects`, by the name of the section, with

* `mistakes_of(section, where)`: what is wrong with the section before anything is simulated;
* `delay(planned, run, section, computed)`: a `Delay` of a step that computes for so many seconds; or
* `follow(planned, run, section, breakdown, step)`: a table of what comes after a step, and its spans;
* `TITLE` and `rows(table)`: how the result's page shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from prestep.sim import plugins
from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.step_times import by_rank, longest, median
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.analysis.uncertainty import Uncertainty
from prestep.sim.engine.execution import Run
from prestep.sim.errors import Mistake
from prestep.sim.planning.planned import Planned

GROUP = "prestep.effects"


class Delay(Protocol):
    """What a step waits for beside what it computes.

    Attributes
    ----------
    table : mapping
        In the prediction, under the name of the section.
    step_time, gpu_time : float
        Seconds of the step with it; those of the GPU and of what nothing overlaps, whose interval is that of the
        critical path.
    """

    table: Mapping[str, Any]

    @property
    def step_time(self) -> float: ...

    @property
    def gpu_time(self) -> float: ...

    def path(self, path: CriticalPath) -> CriticalPath:
        """The critical path of the step with it."""
        ...

    def interval(self, gpu: Uncertainty) -> Uncertainty:
        """The interval of the step with it, from that of `gpu_time`."""
        ...


def effect_of(name: str) -> ModuleType | None:
    """The module of a section that adds to a step; None of any other."""
    plugin = plugins.plugins_in(GROUP).get(name)
    return None if plugin is None else plugins.imported_plugin(plugin)


def mistakes_of(
    sections: Mapping[str, Any], where: str, several: bool
) -> list[Mistake]:
    """What is wrong with the sections that add to a step; steps of `several` jobs have none."""
    mistakes = []
    for name, section in sections.items():
        effect = effect_of(name)
        if effect is not None and several:
            hint = "not simulated for several jobs"
            mistakes.append(Mistake(where, name, "a section", "nothing", hint))
        if effect is not None and hasattr(effect, "mistakes_of"):
            mistakes += effect.mistakes_of(section, where)
    return mistakes


def delays_of(planned: Planned, run: Run, computed: float) -> dict[str, Delay]:
    """What a step that computes for `computed` seconds waits for, by section: each waits for the others, too."""
    delays: dict[str, Delay] = {}
    for name, section in planned.job.sections.items():
        effect = effect_of(name)
        if effect is not None and hasattr(effect, "delay"):
            delays[name] = effect.delay(planned, run, section, computed)
            computed = delays[name].step_time
    return delays


def step_time(planned: Planned, run: Run) -> float:
    """Seconds of the last step with its delays: the longest of its ranks', with noise their median."""
    times = by_rank(planned.graph, run).values()
    computed = longest(times) if planned.noise is None else median(times)
    delays = [*delays_of(planned, run, computed).values()]
    return delays[-1].step_time if delays else computed


def following(
    planned: Planned, run: Run, breakdown: Mapping[str, float], step: float
) -> tuple[dict[str, Mapping[str, Any]], Sequence[Timeline]]:
    """What comes after a step of `step` seconds: tables by section, and spans."""
    tables: dict[str, Mapping[str, Any]] = {}
    spans: list[Timeline] = []
    for name, section in planned.job.sections.items():
        effect = effect_of(name)
        if effect is not None and hasattr(effect, "follow"):
            tables[name], after = effect.follow(planned, run, section, breakdown, step)
            spans.append(after)
    return tables, spans


def pages_of(tables: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Title and rows (what, how much) of each section's table."""
    effects = [(effect_of(name), table) for name, table in sorted(tables.items())]
    return [(one.TITLE, one.rows(table)) for one, table in effects if one is not None]
