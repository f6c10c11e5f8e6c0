"""Which element of a cluster matters most: the step with each of them changed, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim import progress
from prestep.sim.analysis.critical_path import IO
from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.elements import Element
from prestep.sim.studies.representatives import MOST, representatives
from prestep.sim.studies.whatif import Changes, Table

FACTORS = (0.5, 2.0)
SHORT_NOTE = (
    "More, latencies and other elements too: prestep run --report FILE --each all."
)
FIRST_ORDER_NOTE = (
    "To first order, from the critical path and, where they are known, the links' shadow prices. "
    "Of a step as long as this half and twice are simulated when asked: prestep run --report FILE --each link-kind,gpu."
)


def tornado(
    scenario: Scenario,
    each: Sequence[str],
    factors: Sequence[float] = FACTORS,
    base: Planned | None = None,
    most: int = MOST,
) -> Table:
    """The step with every element at each of the factors, the largest effect first; times in seconds.

    Of elements that are alike one is tried; of more than `most` classes of a word, so many, and `coverage` says so.
    `base`: the scenario's own step, where it was planned before.
    """
    changes = Changes(scenario, base)
    tried = [representatives(changes.base, word, most) for word in dict.fromkeys(each)]
    wanted = list(dict.fromkeys(one for word in tried for one in word.chosen))
    before = step_time(changes.base, execute(changes.base))
    table = _effects(changes, before, [(one.name, one.key) for one in wanted], factors)
    stands_for = {one.key: one for one in wanted}
    rows = [{**row, **stands_for[row["set"]].to_dict()} for row in table["elements"]]
    coverage = [word.to_dict() for word in tried]
    return {**table, "elements": rows, "each": list(each), "coverage": coverage}


def _effects(
    changes: Changes, before: float, wanted: Sequence[Element], factors: Sequence[float]
) -> Table:
    """The step with each element at each of the factors, the largest effect first."""
    rows = []
    for name, key in progress.track(wanted, "what-ifs"):
        steps = [(factor, _step_with(changes, key, factor)) for factor in factors]
        rows.append(_row(name, key, before, steps))
    return _table(before, factors, rows)


def _step_with(changes: Changes, key: str, factor: float) -> float:
    """Seconds of the step with an element at a factor of what it is."""
    changed = changes.with_cluster({key: f"{factor:g}x"})
    return step_time(changed, execute(changed))


def _row(
    name: str, key: str, before: float, steps: Sequence[tuple[float, float]]
) -> Table:
    """An element; `steps` has (factor, step time)."""
    tried = [
        {"factor": factor, "step_time": step, "difference": step - before}
        for factor, step in steps
    ]
    effect = max(abs(change["difference"]) for change in tried)
    return {"element": name, "set": key, "changes": tried, "effect": effect}


def _table(before: float, factors: Sequence[float], rows: list[Table]) -> Table:
    rows.sort(key=lambda row: -float(row["effect"]))
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
    return {**_effects(changes, result.step_time, chosen, tried), "note": SHORT_NOTE}


def _unasked(result: Prediction) -> list[Element]:
    """The GPU's speed, then kinds of links by what they are worth (by how busy they are, where that is not known)."""
    worth = {kind.kind: abs(kind.shadow_price or 0.0) for kind in result.link_kinds}
    busy = {kind.kind: kind.held for kind in result.link_kinds}
    kinds = sorted(worth, key=lambda kind: (-worth[kind], -busy[kind]))
    links = [(kind, f"{kind}.bandwidth") for kind in kinds if worth[kind] or busy[kind]]
    flops, memory = "gpu flops", "gpu hbm_bandwidth"
    return [(flops, "gpu.flops"), *links[:1], (memory, "gpu.hbm_bandwidth"), *links[1:]]


def _first_order(result: Prediction) -> Table:
    """A table as of `tornado` for 1 % more of everything that the step gains from."""
    step = result.step_time
    rows = [
        _first_order_row(name, step, -gain / 100)
        for name, gain in _gains(result).items()
        if gain
    ]
    return {**_table(step, [1.01], rows), "note": FIRST_ORDER_NOTE}


def _first_order_row(name: str, step: float, difference: float) -> Table:
    change = {"factor": 1.01, "step_time": step + difference, "difference": difference}
    return {"element": name, "set": "", "effect": abs(difference), "changes": [change]}


def _gains(result: Prediction) -> dict[str, float]:
    """Seconds per relative gain of each element: of links their shadow prices, else the time on the critical path."""
    path = result.critical_path
    parts = path.parts() if path is not None else []
    spent: dict[str, float] = {}
    for part in parts:
        spent[part["kind"]] = spent.get(part["kind"], 0.0) + part["seconds"]
    gains = {
        "gpu (all kernels)": spent.get("kernel", 0.0),
        "host (its launches)": spent.get("host", 0.0),
        "data loading": spent.get(IO, 0.0),
    }
    prices = {kind.kind: kind.shadow_price for kind in result.link_kinds}
    if any(price is not None for price in prices.values()):
        return gains | {kind: price or 0.0 for kind, price in prices.items()}
    # Too many links for prices: what waits for communication, whatever link it is.
    for part in parts:
        if part["kind"] == "communication":
            name = f"links ({part['axis'] or 'all'} communication)"
            gains[name] = gains.get(name, 0.0) + part["seconds"]
    return gains
