"""What-ifs: a prediction before and after a change, and which element of the cluster matters most.

Where only the cluster changed, the step is lowered once and the cluster is built once: a change then costs planning
its communications and one run of the engine. `Changes` keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, Mistake, unknown

if TYPE_CHECKING:
    from sim.predict import Simulation
    from sim.result import Result
    from sim.sections import Scenario
    from topologies.fabric import Fabric

Table = dict[str, Any]
FACTORS = (0.5, 2.0)
# Elements of one kind that `--each` tries; of more, the first.
MOST = 64


def compare(base: Table, changed: Table) -> Table:
    """Base against changed, from two `Result.to_dict()`; times in seconds, `speedup` > 1 is faster."""
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
            name: other["breakdown"].get(name, 0.0) - one["breakdown"].get(name, 0.0) for name in names
        },
    }


def _interval(base: Table, changed: Table) -> Table | None:
    """Interval of the difference, s: errors of what both rest on cancel. None where a result has none."""
    from sim.uncertainty import difference

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
        flat |= _flat(value, f"{prefix}{name} ") if isinstance(value, dict) else {prefix + name: float(value)}
    return flat


def render(comparison: Table) -> str:
    """The comparison as a table for people."""
    from sim.whatif_page import comparison_page

    return comparison_page(comparison)


class Changes:
    """A scenario's prediction, and those of changed clusters, with as little done again as possible."""

    def __init__(self, scenario: Scenario) -> None:
        from sim.predict import load_fabric, simulate

        self.scenario = scenario
        plain = replace(scenario, cluster=replace(scenario.cluster, set={}))
        self._cluster = load_fabric(plain)
        self.base: Simulation = simulate(scenario, fabric=self.fabric(scenario.cluster.set))

    def fabric(self, overrides: Mapping[str, str]) -> Fabric:
        """The scenario's cluster with links and GPUs changed."""
        return self._cluster.with_overrides(overrides) if overrides else self._cluster

    def simulate(self, more: Mapping[str, str]) -> Simulation:
        """The scenario with further changes of its cluster, on top of its own."""
        from sim.predict import simulate

        fabric = self.base.fabric.with_overrides(more)
        return simulate(self.scenario, fabric=fabric, lowered=self.base.lowered)

    def of(self, scenario: Scenario) -> Simulation:
        """Another scenario; what it has in common with this one is not made again."""
        from sim.predict import simulate

        if replace(scenario.cluster, set={}) != replace(self.scenario.cluster, set={}):
            return simulate(scenario)
        same = replace(scenario, cluster=self.scenario.cluster, measured=self.scenario.measured) == self.scenario
        lowered = self.base.lowered if same else None
        return simulate(scenario, fabric=self.fabric(scenario.cluster.set), lowered=lowered)


def results(base: Scenario, changed: Scenario, prices: bool = True) -> tuple[Result, Result]:
    """Both predictions, with shadow prices where the cluster is small enough."""
    from sim.report import result_of
    from sim.shadow import affordable, shadow_prices

    changes = Changes(base)
    found = [changes.base, changes.of(changed)]
    one, other = (result_of(s, shadow_prices(s) if prices and affordable(s) else None) for s in found)
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
        raise InputError(Mistake("command line", "--each", f'"{each}"', f"something that {fabric.name} has"))
    return found


def _kinds(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(kind, f"{kind}.bandwidth") for kind in fabric.links.kinds]


def _tiers(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    from topologies.selectors import TIERS

    present = [kind for kind in TIERS if kind in (*fabric.nodes.kinds, *fabric.links.kinds)]
    return [(kind, f"{kind}.bandwidth") for kind in present]


def _latencies(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(f"{kind} latency", f"{kind}.latency") for kind in fabric.links.kinds]


def _gpu(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(f"gpu {name}", f"gpu.{name}") for name in ("flops", "hbm_bandwidth", "clock")]


def _ranks(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [(f"gpu[{rank}]", f"gpu[{rank}].clock") for rank in range(min(world, len(fabric.gpus)))]


def _hosts(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    used = dict.fromkeys(fabric.host_of(gpu) for gpu in fabric.gpus[:world])
    return [(host, f"{host}.bandwidth") for host in used if host]


def _links(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    links = fabric.links
    cables = [row for row in range(len(links)) if links.index[links.dst[row], links.src[row]] > row]
    outside = [row for row in cables if not _inside(fabric, row)]
    return [(links.name(row), f"link[{links.name(row)}].bandwidth") for row in outside or cables]


def _inside(fabric: Fabric, row: int) -> bool:
    """Whether a link joins two devices of one host."""
    ends = fabric.host_of(fabric.links.src[row]), fabric.host_of(fabric.links.dst[row])
    return bool(ends[0]) and ends[0] == ends[1]


def _all(fabric: Fabric, world: int) -> list[tuple[str, str]]:
    return [*_gpu(fabric, world), *_kinds(fabric, world), *_latencies(fabric, world)]


#: Words of --each -> what they change.
EACH = {
    "link-kind": _kinds, "tier": _tiers, "latency": _latencies, "gpu": _gpu, "rank": _ranks, "host": _hosts,
    "link": _links, "all": _all,
}  # fmt: skip


def tornado(scenario: Scenario, each: Sequence[str], factors: Sequence[float] = FACTORS) -> Table:
    """The step with every element at each of the factors, the largest effect first; times in seconds."""
    from sim.report import step_time

    changes = Changes(scenario)
    before, world = step_time(changes.base), changes.base.lowered.layout.world
    rows = []
    for name, key in dict.fromkeys(pair for word in each for pair in elements(changes.base.fabric, word, world)):
        found = []
        for factor in factors:
            after = step_time(changes.simulate({key: f"{factor:g}x"}))
            found.append({"factor": factor, "step_time": after, "difference": after - before})
        rows.append({"element": name, "set": key, "changes": found, "effect": max(abs(c["difference"]) for c in found)})
    rows.sort(key=lambda row: -float(str(row["effect"])))
    return {"step_time": before, "factors": list(factors), "each": list(each), "elements": rows}
