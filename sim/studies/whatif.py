"""What-ifs: a prediction before and after a change.

Where only the cluster changed, the step is lowered once and the cluster is built once: a change then costs planning
its communications and one run of the engine. `Changes` keeps both, for the last few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

from prestep.sim.analysis.choices import alone, changed_choices
from prestep.sim.analysis.energy import bound_note, factors, limit_note
from prestep.sim.analysis.json_text import finite
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, load_fabric, plan, reported
from prestep.sim.spec.sections import Measured, Scenario
from prestep.sim.studies.paired import Side, interval_of
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.workloads.lowered import Lowered

T = TypeVar("T")
Table = dict[str, Any]
#: What a result has beside its figures: a changed scenario loses what was measured of it.
ASIDE = (
    *("scenario", "warnings", "measured_step_time", "signed_error"),
    *("measured_fitted", "expected_error"),
)


def compared(
    base: Scenario,
    changed: Scenario,
    overrides: Sequence[str] = (),
    prices: bool = True,
) -> Table:
    """A scenario as it is and changed (``overrides`` say how), as `compare` has it, with the difference's interval.

    With shadow prices where the cluster is small enough, and what NCCL chooses otherwise after the changes.
    """
    changes = Changes(base)
    one, other = (
        Side(planned, reported(planned, execute(planned), prices))
        for planned in (changes.base, changes.of(changed))
    )
    return beside((base, one), (changed, other), overrides)


def beside(
    base: tuple[Scenario, Side],
    changed: tuple[Scenario, Side],
    overrides: Sequence[str] = (),
    again: bool = True,
) -> Table:
    """Two predicted steps, each with its scenario, as `compared` has them.

    The difference's interval simulates small steps many times `again`, or else is linearised.
    """
    (scenario, one), (changed_scenario, other) = base, changed
    table = compare(one.result.to_dict(), other.result.to_dict())
    details, asked, speedup = one.result.details, factors(overrides), table["speedup"]
    because = limit_note(one.result.energy, other.result.energy, asked, speedup)
    if not because and details is not None:
        because = bound_note(asked, details.kernels, details.gpu, speedup)
    return {
        **table,
        "difference_interval": interval_of(one, other, again),
        "changed_kinds": changed_kinds(one.result, overrides),
        "same_operations": _operations(scenario) == _operations(changed_scenario),
        "communication_alone": {
            side: sum(alone(planned).values())
            for side, planned in (("base", one.planned), ("changed", other.planned))
        },
        "because": because,
        "same_places": _moved(scenario, changed_scenario)
        and one.planned.gpus == other.planned.gpus,
        "choices": [
            asdict(choice) for choice in changed_choices(one.planned, other.planned)
        ],
    }


def compare(base: Table, changed: Table) -> Table:
    """Base against changed, from two `Prediction.to_dict()`; times in seconds, `speedup` > 1 is faster."""
    before, after = float(base["step_time"]), float(changed["step_time"])
    one, other = _part(base), _part(changed)
    names = {**one["breakdown"], **other["breakdown"]}
    return {
        "base": one,
        "changed": other,
        "unchanged": _figures(base) == _figures(changed),
        "speedup": before / after if after else 1.0,
        "difference": after - before,
        "breakdown_difference": {
            name: other["breakdown"].get(name, 0.0) - one["breakdown"].get(name, 0.0)
            for name in names
        },
    }


def _moved(base: Scenario, changed: Scenario) -> bool:
    """Whether ranks were to run elsewhere, and nothing else is different."""
    return (
        base.placement != changed.placement
        and replace(changed, placement=base.placement, measured=base.measured) == base
    )


def _part(result: Table) -> Table:
    return {
        "step_time": result["step_time"],
        "breakdown": _flat(result["breakdown"]),
        "links": result.get("links", []),
        "link_kinds": result.get("link_kinds", []),
        "out_of_memory": result.get("out_of_memory"),
        "warnings": result.get("warnings", []),
    }


def _figures(result: Table) -> Table:
    """All that is predicted, without what was asked, said about it, or measured of it; what is not known as None."""
    figures = {name: value for name, value in result.items() if name not in ASIDE}
    return finite(figures)  # type: ignore[no-any-return]


def _flat(breakdown: Table, prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in breakdown.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = float(value)
    return flat


class Recent(Generic[T]):
    """The last `most` values; keys are compared, not hashed, since scenarios have mappings in them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Any, T]] = []  # the one asked for last comes last

    def get(self, key: Any) -> T | None:
        """The value of a key, if it is kept."""
        for at, (known, value) in enumerate(self._kept):
            if known == key:
                self._kept.append(self._kept.pop(at))
                return value
        return None

    def keep(self, key: Any, value: T) -> None:
        """Keep a value in the place of what the key had; the one that was not asked for longest goes."""
        self._kept = [(known, one) for known, one in self._kept if known != key]
        self._kept.append((key, value))
        del self._kept[: -self._most]

    def of(self, key: Any, make: Callable[[], T]) -> T:
        """The value that is kept, or a new one, which is kept."""
        found = self.get(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found


class Changes:
    """A scenario's planned step, and those of changed ones, with as little done again as possible.

    What was made last is kept: clusters, clusters with changes (and with them the plans of their communications), and
    steps without times.
    """

    def __init__(self, scenario: Scenario, base: Planned | None = None) -> None:
        self.scenario = scenario
        self._clusters: Recent[Fabric] = Recent(4)
        self._fabrics: Recent[Fabric] = Recent(8)
        self._lowered: Recent[Lowered] = Recent(8)
        self.base: Planned = base or plan(scenario, self._fabric(scenario))
        self._lowered.keep(_work(scenario), self.base.lowered)

    def fabric(self, overrides: Mapping[str, str]) -> Fabric:
        """The scenario's cluster with links and GPUs changed."""
        cluster = replace(self.scenario.cluster, set=dict(overrides))
        return self._fabric(replace(self.scenario, cluster=cluster))

    def _fabric(self, scenario: Scenario) -> Fabric:
        """The cluster of a scenario, with its changes."""
        alone = replace(scenario, cluster=replace(scenario.cluster, set={}))
        c, overrides = alone.cluster, scenario.cluster.set
        # All that `load_fabric` reads of it.
        key = (
            *(c.file, c.name, c.hosts, c.routing, c.routing_seed, c.routing_flows),
            *(scenario.nccl.pxn_disable, c.numa),
        )
        cluster = self._clusters.of(key, lambda: load_fabric(alone))
        if not overrides:
            return cluster
        # In the order in which they are made.
        changed = (*key, tuple(overrides.items()))
        return self._fabrics.of(changed, lambda: with_overrides(cluster, overrides))

    def with_cluster(self, more: Mapping[str, str]) -> Planned:
        """The scenario with further changes of its cluster, on top of its own."""
        fabric = with_overrides(self.base.fabric, more)
        return plan(self.scenario, fabric, lowered=self.base.lowered)

    def of(self, scenario: Scenario) -> Planned:
        """Another scenario; what it has in common with those before is not made again."""
        work = _work(scenario)
        made = plan(scenario, self._fabric(scenario), lowered=self._lowered.get(work))
        self._lowered.keep(work, made.lowered)
        return made


def _work(scenario: Scenario) -> Scenario:
    """What a step without times follows from: all but changes of the cluster, and what was measured."""
    cluster = replace(scenario.cluster, set={})
    return replace(scenario, cluster=cluster, measured=Measured())


def _operations(scenario: Scenario) -> Scenario:
    """What the operations of a step follow from: all but its hardware, however fast that is."""
    work = _work(scenario)
    cluster = replace(work.cluster, host_factor=None, host_factor_by_rank=())
    return replace(work, cluster=cluster, where="")


def changed_kinds(base: Prediction, overrides: Sequence[str]) -> list[str]:
    """The kinds of links that are changed; none where anything else is changed too.

    ``overrides``: items such as "spine.bandwidth=2x".
    """
    kinds = base.details.fabric.links.kinds if base.details is not None else ()
    changed = [item.partition(".")[0].strip() for item in overrides]
    return changed if set(changed) <= set(kinds) else []
