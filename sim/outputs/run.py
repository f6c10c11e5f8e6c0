"""Of `run`: a step of one job or several, or the largest micro batch, and what extensions bring."""

from __future__ import annotations

from prestep.sim import plugins
from prestep.sim.analysis.cost import Cost
from prestep.sim.analysis.energy import Energy
from prestep.sim.analysis.link_use import Link, LinkKind
from prestep.sim.analysis.memory import MemoryVerdict, Recomputed
from prestep.sim.analysis.prediction import Fallback
from prestep.sim.analysis.uncertainty import Part, Uncertainty
from prestep.sim.entry_points import PREFIX
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.outputs.words import (
    Schema,
    either,
    items,
    maybe,
    more,
    number,
    table,
    text,
    titled,
)
from prestep.sim.studies import largest
from prestep.sim.studies.host_effect import HostEffect

DECLARED = schemas_beside(
    __file__,
    *(Cost, Energy, Fallback, HostEffect, Link, LinkKind, MemoryVerdict, Part),
    *(Recomputed, Uncertainty),
)
CRITICAL_PATH = DECLARED["critical_path"]


def schema() -> Schema:
    """Returns the schema of `prestep run --json`, with what installed extensions add to a step or predict instead."""
    step = more(
        DECLARED["step"], **{k: maybe(v) for k, v in _of_extensions("effects").items()}
    )
    others = _of_extensions("runs").values()
    jobs = table(
        "several jobs on one cluster",
        jobs=items(
            more(
                step,
                name=text(),
                alone_step_time=number("s, with the cluster to itself"),
                slowdown=number("step time over that"),
            )
        ),
        links=DECLARED["links"],
        notes=items(text()),
    )
    return titled(
        "A predicted step: `prestep run --json`.",
        either(
            "one step; or several jobs, serving, an RL step, or the largest micro batch, as was asked",
            *(step, jobs, *others, largest.SCHEMA),
        ),
    )


def _of_extensions(group: str) -> dict[str, Schema]:
    """`SCHEMA` of each module of a group, by the name of its section; a table of any keys where it says none."""
    modules = plugins.plugins_in(f"{PREFIX}{group}").items()
    return {
        name: Schema(getattr(plugins.imported_plugin(plugin), "SCHEMA", table()))
        for name, plugin in modules
    }
