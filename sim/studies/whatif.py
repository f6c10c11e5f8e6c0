"""What-ifs: a prediction before and after a change, and which element of the cluster matters most.

Where only the cluster changed, the step is lowered once and the cluster is built once: a change then costs planning
its communications and one run of the engine. `Changes` keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from sim import progress
from sim.analysis.critical_path import IO
from sim.analysis.prediction import Prediction
from sim.analysis.step_time import step_time
from sim.analysis.uncertainty import difference
from sim.errors import InputError, Mistake, unknown
from sim.planning.planned import Planned
from sim.predict import execute, load_fabric, plan, reported
from sim.spec.sections import Scenario
from sim.studies.whatif_page import comparison_page
from topologies.core.kinds import TIERS
from topologies.edit.overrides import with_overrides
from topologies.fabric import Fabric

Table = dict[str, Any]
FACTORS = (0.5, 2.0)
# Elements of one kind that `--each` tries; of more, the first.
MOST = 64


def compare(base: Table, changed: Table) -> Table:
    """Base against changed, from two `Prediction.to_dict()`; times in seconds, `speedup` > 1 is faster."""
    before, after = float(base["step_time"]), float(changed["step_time"])
    one, other = _part(base), _part(changed)
    names = {**one["breakdown"], **other["breakdown"]}
    return {
        "base": one,
        "changed": other,
        "speedup": before / after if after else 1.0,
        "difference": after - before,
        "difference_interval": _interval(base, changed),
        "breakdown_difference": {
            name: other["breakdown"].get(name, 0.0) - one["breakdown"].get(name, 0.0)
            for name in names
        },
    }


def _interval(base: Table, changed: Table) -> Table | None:
    """Interval of the difference, s: errors of what both rest on cancel. None where a result has none."""
    one, other = base.get("uncertainty"), changed.get("uncertainty")
    return difference(one, other) if one and other else None


def _part(result: Table) -> Table:
    return {
        "step_time": result["step_time"],
        "breakdown": _flat(result["breakdown"]),
        "links": result.get("links", []),
        "link_kinds": result.get("link_kinds", []),
    }


def _flat(breakdown: Table, prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in breakdown.items():
        flat |= (
            _flat(value, f"{prefix}{name} ")
            if isinstance(value, dict)
            else {prefix + name: float(value)}
        )
    return flat


def render(comparison: Table) -> str:
    """The comparison as a table for people."""
    return comparison_page(comparison)


class Changes:
    """A scenario's planned step, and those of changed clusters, with as little done again as possible."""

    def __init__(self, scenario: Scenario, base: Planned | None = None) -> None:
        self.scenario = scenario
        self.base: Planned = base or plan(scenario, self.fabric(scenario.cluster.set))

    @cached_property
    def _cluster(self) -> Fabric:
        """The cluster as its file has it."""
        return load_fabric(
            replace(self.scenario, cluster=replace(self.scenario.cluster, set={}))
        )

    def fabric(self, overrides: Mapping[str, str]) -> Fabric:
        """The scenario's cluster with links and GPUs changed."""
        return with_overrides(self._cluster, overrides) if overrides else self._cluster

    def with_cluster(self, more: Mapping[str, str]) -> Planned:
        """The scenario with further changes of its cluster, on top of its own."""
        fabric = with_overrides(self.base.fabric, more)
        return plan(self.scenario, fabric, lowered=self.base.lowered)

    def of(self, scenario: Scenario) -> Planned:
        """Another scenario; what it has in common with this one is not made again."""
        if replace(scenario.cluster, set={}) != replace(self.scenario.cluster, set={}):
            return plan(scenario)
        same = (
            replace(
                scenario, cluster=self.scenario.cluster, measured=self.scenario.measured
            )
            == self.scenario
        )
        lowered = self.base.lowered if same else None
        return plan(scenario, self.fabric(scenario.cluster.set), lowered=lowered)


def results(
    base: Scenario, changed: Scenario, prices: bool = True
) -> tuple[Prediction, Prediction]:
    """Both predictions, with shadow prices where the cluster is small enough."""
    changes = Changes(base)
    one, other = (
        reported(p, execute(p), prices) for p in (changes.base, changes.of(changed))
    )
    return one, other


def elements(fabric: Fabric, each: str, world: int) -> list[tuple[str, str]]:
    """What `--each` changes, one at a time: (its name, the selector and attribute).

    Raises
    ------
    InputError
        For a word that is not one of `EACH`, or names nothing on this cluster.
    """
    if each not in EACH:
        raise InputError(unknown("command line", "--each", each, EACH))
    found = EACH[each](fabric, world)[:MOST]
    if not found:
        raise InputError(
            Mistake(
                "command line",
                "--each",
                f'"{each}"',
                f"something that {fabric.name} has",
            )
        )
    return found


def _kinds(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(kind, f"{kind}.bandwidth") for kind in fabric.links.kinds]


def _tiers(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    present = [
        kind for kind in TIERS if kind in (*fabric.nodes.kinds, *fabric.links.kinds)
    ]
    return [(kind, f"{kind}.bandwidth") for kind in present]


def _latencies(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(f"{kind} latency", f"{kind}.latency") for kind in fabric.links.kinds]


def _gpu(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [
        (f"gpu {name}", f"gpu.{name}") for name in ("flops", "hbm_bandwidth", "clock")
    ]


def _ranks(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [
        (f"gpu[{rank}]", f"gpu[{rank}].clock")
        for rank in range(min(world, len(fabric.gpus)))
    ]


def _hosts(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    used = dict.fromkeys(fabric.host_of(gpu) for gpu in fabric.gpus[:world])
    return [(host, f"{host}.bandwidth") for host in used if host]


def _links(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    links = fabric.links
    cables = [
        row
        for row in range(len(links))
        if links.index[links.dst[row], links.src[row]] > row
    ]
    outside = [row for row in cables if not _inside(fabric, row)]
    return [
        (links.name(row), f"link[{links.name(row)}].bandwidth")
        for row in outside or cables
    ]


def _inside(fabric: Fabric, row: int) -> bool:
    """Whether a link joins two devices of one host."""
    ends = fabric.host_of(fabric.links.src[row]), fabric.host_of(fabric.links.dst[row])
    return bool(ends[0]) and ends[0] == ends[1]


def _all(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [*_gpu(fabric, world), *_kinds(fabric, world), *_latencies(fabric, world)]


#: Words of --each -> what they change.
EACH = {
    "link-kind": _kinds,
    "tier": _tiers,
    "latency": _latencies,
    "gpu": _gpu,
    "rank": _ranks,
    "host": _hosts,
    "link": _links,
    "all": _all,
}


def tornado(
    scenario: Scenario,
    each: Sequence[str],
    factors: Sequence[float] = FACTORS,
    base: Planned | None = None,
) -> Table:
    """The step with every element at each of the factors, the largest effect first; times in seconds.

    `base`: the scenario's own step, where it was planned before.
    """
    changes = Changes(scenario, base)
    world = changes.base.lowered.layout.world
    wanted = list(
        dict.fromkeys(
            pair for word in each for pair in elements(changes.base.fabric, word, world)
        )
    )
    before = step_time(changes.base, execute(changes.base))
    return {**_effects(changes, before, wanted, factors), "each": list(each)}


def _effects(
    changes: Changes,
    before: float,
    wanted: Sequence[tuple[str, str]],
    factors: Sequence[float],
) -> Table:
    rows = []
    for name, key in progress.track(wanted, "what-ifs"):
        found = []
        for factor in factors:
            changed = changes.with_cluster({key: f"{factor:g}x"})
            after = step_time(changed, execute(changed))
            found.append(
                {"factor": factor, "step_time": after, "difference": after - before}
            )
        rows.append(
            {
                "element": name,
                "set": key,
                "changes": found,
                "effect": max(abs(c["difference"]) for c in found),
            }
        )
    rows.sort(key=lambda row: -float(str(row["effect"])))
    return {"step_time": before, "factors": list(factors), "elements": rows}


#: Operations (and links, each of which costs as much) times changes that a report spends on what-ifs unless it is asked
#: for more: less than a second.
SPENT, MOST_UNASKED = 28_000, 6


def short_tornado(
    scenario: Scenario,
    result: Prediction,
    base: Planned | None = None,
    factors: Sequence[float] = FACTORS,
) -> Table:
    """The what-ifs that a report has unasked: the GPU and the links that matter most, as many as `SPENT` allows.

    Of a large step they are at twice alone; of a larger one none are simulated, and the table has the effect of 1 %
    more of every kind of link to first order. `base`: the scenario's own step, where it was planned before.
    """
    changes = Changes(scenario, base)
    cost = changes.base.graph.operations + len(changes.base.fabric.links)
    most = int(SPENT / cost)
    if most < len(factors):
        return _first_order(result)
    tried = list(factors) if most >= 3 * len(factors) else [max(factors)]
    chosen = _unasked(result)[: min(MOST_UNASKED, most // len(tried))]
    note = (
        "More, latencies and other elements too: prestep run --report FILE --each all."
    )
    return {**_effects(changes, result.step_time, chosen, tried), "note": note}


def _unasked(result: Prediction) -> list[tuple[str, str]]:
    """The GPU's speed, then kinds of links by what they are worth (by how busy they are, where that is not known)."""
    worth = {kind.kind: abs(kind.shadow_price or 0.0) for kind in result.link_kinds}
    busy = {kind.kind: kind.held for kind in result.link_kinds}
    kinds = [
        kind
        for kind in sorted(worth, key=lambda k: (-worth[k], -busy[k]))
        if worth[kind] or busy[kind]
    ]
    links = [(kind, f"{kind}.bandwidth") for kind in kinds]
    gpu = [("gpu flops", "gpu.flops"), ("gpu hbm_bandwidth", "gpu.hbm_bandwidth")]
    return [gpu[0], *links[:1], gpu[1], *links[1:]]


def _first_order(result: Prediction) -> Table:
    """A table as of `tornado` for 1 % more: of links by their shadow prices, else by the time on the critical path."""
    spent: dict[str, float] = {}
    for part in (
        result.critical_path.parts() if result.critical_path is not None else ()
    ):
        spent[part["kind"]] = spent.get(part["kind"], 0.0) + part["seconds"]
    gains = {
        "gpu (all kernels)": spent.get("kernel", 0.0),
        "host (its launches)": spent.get("host", 0.0),
    }
    gains["data loading"] = spent.get(IO, 0.0)
    prices = {kind.kind: kind.shadow_price for kind in result.link_kinds}
    if any(price is not None for price in prices.values()):
        gains |= {kind: price or 0.0 for kind, price in prices.items()}
    else:  # too many links for prices: what waits for communication, whatever link it is
        for part in (
            result.critical_path.parts() if result.critical_path is not None else ()
        ):
            if part["kind"] == "communication":
                name = f"links ({part['axis'] or 'all'} communication)"
                gains[name] = gains.get(name, 0.0) + part["seconds"]
    changes = {name: -gain / 100 for name, gain in gains.items() if gain}
    step = result.step_time
    rows = [
        {
            "element": name,
            "set": "",
            "effect": abs(difference),
            "changes": [
                {
                    "factor": 1.01,
                    "step_time": step + difference,
                    "difference": difference,
                }
            ],
        }
        for name, difference in sorted(changes.items(), key=lambda item: -abs(item[1]))
    ]
    note = "To first order, from the critical path and, where they are known, the links' shadow prices. "
    note += "Of a step as long as this half and twice are simulated when asked: prestep run --report FILE --each "
    return {
        "step_time": step,
        "factors": [1.01],
        "elements": rows,
        "note": note + "link-kind,gpu.",
    }
