"""Fits what kernels and collectives cost each other (`[overlap]` of a file of constants) to overlap rows of a machine.

Every row is run by the engine (`overlap_run`): a kernel alone is the row's, a collective is predicted with the
constants that the file gets. Minimises the squared logarithm of predicted over measured time of both sides (soft L1).
Every third row is held out, so two thirds are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from prestep.sim.collectives.constants import OVERLAP, Constants
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.costs import interference, load_gpu
from prestep.sim.costs.kinds import work
from prestep.validation.fit.collectives import Errors, planner
from prestep.validation.formats.collective_rows import members
from prestep.validation.formats.overlap_rows import Overlap
from prestep.validation.sets.overlap_run import side_by_side
from prestep.validation.sets.predict_collective import alone_of, cluster_of, gpus_of

LEAST = 3  # rows that a constant rests on, those held out not counted
THIRD = 3  # one row of so many is held out
FACTOR = (1.0, 6.0)  # range of a factor
STEP = 0.02  # of a derivative, in logarithms: collectives that wait for the end of a kernel go in steps
SHORT = 0.5  # of the harness's queues, while constants are sought; what is told of a fit is of whole ones
PARTS = ("overlap: kernels", "overlap: collectives")


@dataclass(frozen=True)
class Fit:
    """Constants of `[overlap]`, what was fitted, what lacked rows, and signed errors before and after."""

    table: dict[str, Any]
    fitted: tuple[str, ...]
    left: tuple[str, ...]
    before: Errors
    after: Errors

    @property
    def words(self) -> list[str]:
        """What lacked rows."""
        if not self.left:
            return []
        need = f"{LEAST} rows that are not held out (every third is)"
        return [
            f"too few overlap rows, left as they were: {', '.join(self.left)}; each needs {need}"
        ]


NOTHING = Fit({}, (), (), {}, {})


@dataclass(frozen=True)
class Item:
    """A row with its collective."""

    row: Overlap
    plan: Plan
    bandwidth: np.ndarray
    gpu: str
    touched: frozenset[str]
    held_out: bool
    known: dict[tuple[float, ...], tuple[float, float]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def residuals(self, table: Mapping[str, Any], share: float = 1.0) -> list[float]:
        """Logarithms of predicted over measured times, kernels and collectives, by a share of the harness's queues."""
        row, beside = self.row, interference.laid_over(table)
        sms, kernel = load_gpu(self.gpu).sms, row.kernel
        # All that a run knows of the constants.
        key = (
            beside.slowdown(kernel, self.plan.channels, sms, row.compute),
            beside.contention(kernel),
            share,
        )
        if key not in self.known:
            self.known[key] = side_by_side(
                kernel,
                row.compute,
                row.comm,
                self.plan,
                self.bandwidth,
                self.gpu,
                beside,
                share,
            )
        measured = row.compute_beside, row.comm_beside
        pairs = zip(self.known[key], measured, strict=True)
        return [float(np.log(made / own)) for made, own in pairs]

    def settled(self, names: Collection[str]) -> list[bool]:
        """Whether kernels and collectives rest on nothing else than what follows from tiles or is among `names`."""
        moving = {"communication", "streaming"}
        return [
            self.touched - moving <= set(names),
            self.touched & moving <= set(names),
        ]


def fit(rows: Sequence[Overlap], table: Constants) -> Fit:
    """Constants for the machine of the rows; collectives take as long as `table` says, and the fit begins at its own.

    What lacks rows stays as it was, and collectives beside kernels of such a kind move nothing.
    """
    own = dict(table.tables.get(OVERLAP, {}))
    items = [_item(row, place, table) for place, row in enumerate(rows)]
    used = [item for item in items if not item.held_out]
    counts = _counts(items, used)
    fitted = tuple(sorted(name for name, count in counts.items() if count >= LEAST))
    left = tuple(
        f"overlap.{name} ({count} {'row' if count == 1 else 'rows'})"
        for name, count in sorted(counts.items())
        if name not in fitted
    )
    before = _errors(items, own)
    if not fitted:
        return Fit(own, (), left, before, before)
    best = _optimum(used, fitted, own)
    return Fit(best, fitted, left, before, _errors(items, best))


def _counts(items: Sequence[Item], used: Sequence[Item]) -> dict[str, int]:
    """How many rows that are fitted to rest on each constant."""
    names = (name for item in items for name in sorted(item.touched))
    return {name: sum(name in item.touched for item in used) for name in names}


def _item(row: Overlap, place: int, table: Constants) -> Item:
    alone = alone_of(row)
    fabric = cluster_of(alone)
    op, ranks = members(alone, gpus_of(alone, fabric))
    chosen = plan_collective(op, row.size, ranks, fabric, alone.wanted)
    plan, gpu = planner(alone, op, ranks, fabric, chosen)(table), str(fabric.gpu_model)
    return Item(
        row,
        plan,
        fabric.links.bandwidth,
        gpu,
        _touched(row, plan, gpu),
        place % THIRD == THIRD - 1,
    )


def _touched(row: Overlap, plan: Plan, gpu: str) -> frozenset[str]:
    """Constants that a row's times rest on."""
    kernel, sms, beside = row.kernel, load_gpu(gpu).sms, interference.laid_over({})
    if not kernel.is_product:
        return frozenset(
            {
                "streaming"
                if work(kernel)[1] >= interference.STREAM
                else "communication",
                f"factor.{interference.factor_name(kernel)}",
            }
        )
    m, n, k = kernel.shape
    if m * n < (sms - min(plan.channels, sms - 1)) * interference.SMALLEST_TILE:
        return frozenset({"communication"})
    if m * n <= interference.ROUNDS * sms * interference.TILE:
        return frozenset({"communication", "static"})
    held_down = beside.least <= 2.0 * m * n * k / row.compute <= beside.free
    return frozenset({"communication", "free"} if held_down else {"communication"})


@dataclass(frozen=True, eq=False)
class _Search:
    """Residuals of rows by the logarithms of their constants, and how they change with each."""

    items: Sequence[Item]
    names: Sequence[str]
    table: Mapping[str, Any]
    high: np.ndarray

    @cached_property
    def settled(self) -> np.ndarray:
        """Which residuals count: of sides of which all that they rest on is fitted."""
        return np.array([item.settled(self.names) for item in self.items]).ravel()

    @cached_property
    def residuals(self) -> Callable[[tuple[float, ...]], np.ndarray]:
        """Residuals at a point, of which the last two are kept."""

        @lru_cache(maxsize=2)
        def at(x: tuple[float, ...]) -> np.ndarray:
            rows = [self.of(item, np.array(x)) for item in self.items]
            return np.where(self.settled, np.array(rows).ravel(), 0.0)

        return at

    def table_at(self, x: np.ndarray) -> dict[str, Any]:
        """The table with the constants of a point."""
        values = np.exp(x).tolist()
        return _set(self.table, dict(zip(self.names, values, strict=True)))

    def of(self, item: Item, x: np.ndarray) -> list[float]:
        """Residuals of one row."""
        return item.residuals(self.table_at(x), SHORT)

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Change of the residuals with each constant; only rows that rest on it are run again."""
        here, columns = self.residuals(tuple(x)).reshape(-1, 2), []
        for column, name in enumerate(self.names):
            step = STEP if x[column] + STEP < self.high[column] else -STEP
            moved = x.copy()
            moved[column] += step
            there = [
                self.of(item, moved) if name in item.touched else old
                for item, old in zip(self.items, here, strict=True)
            ]
            change = (np.array(there) - here).ravel()
            columns.append(np.where(self.settled, change, 0.0) / step)
        return np.array(columns).T


class Slopes:
    """Slopes of residuals that take long (Broyden): taken once, then corrected by what each step changed.

    Parameters
    ----------
    residuals, slopes
        At a point.
    """

    def __init__(
        self,
        residuals: Callable[[tuple[float, ...]], np.ndarray],
        slopes: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._residuals, self._slopes = residuals, slopes
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        here = self._residuals(tuple(x))
        if self._last is None:
            slopes = self._slopes(x)
        else:
            before, there, slopes = self._last
            step = x - before
            length = float(step @ step)
            missed = here - there - slopes @ step
            slopes = slopes + (np.outer(missed, step) / length if length > 0 else 0.0)
        self._last = x.copy(), here, slopes
        return slopes


def _optimum(
    items: Sequence[Item], names: Sequence[str], table: Mapping[str, Any]
) -> dict[str, Any]:
    """The table with the constants that fit best, begun at its own."""
    ranges = [_range(name, items) for name in names]
    low, high = (np.log([one[k] for one in ranges]) for k in range(2))
    high += 1e-6
    own = np.log([_get(table, name) for name in names])
    begin = np.clip(own, low + 1e-9, high - 1e-9)
    search = _Search(items, names, table, high)
    # Waits for whole kernels make steps of it, so the fit begins twice, also well above.
    above = np.clip(begin + np.log(1.25), low + 1e-9, high - 1e-9)
    results = [_descent(search, start, (low, high)) for start in (begin, above)]
    best = min(results, key=lambda result: float(result.cost))
    return search.table_at(best.x)


def _descent(
    search: _Search, start: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]
) -> Any:
    """Least squares from a start, in which far-off rows count less."""
    return least_squares(
        lambda x: search.residuals(tuple(x)),
        start,
        jac=Slopes(search.residuals, search.slope),
        bounds=bounds,
        loss="soft_l1",
        f_scale=0.05,
        ftol=1e-3,
        xtol=1e-3,
        max_nfev=8,
    )


def _range(name: str, items: Sequence[Item]) -> tuple[float, float]:
    """Range of a constant: factors, and the flop/s that power leaves, which no product of the rows exceeds."""
    if name != "free":
        return FACTOR
    fastest = max(_rate(item.row) for item in items if name in item.touched)
    return fastest, 1.5 * fastest


def _rate(row: Overlap) -> float:
    m, n, k = row.kernel.shape
    return 2.0 * m * n * k / row.compute


def _get(table: Mapping[str, Any], name: str) -> float:
    beside = interference.laid_over(table)
    head, _, kind = name.partition(".")
    if kind:
        return float(beside.factor[kind])
    return float(getattr(beside, head)) or beside.communication


def _set(table: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """The table with these constants; factors lie in a table of their own."""
    factor = dict(table.get("factor", {})) | {
        name[7:]: v for name, v in values.items() if name.startswith("factor.")
    }
    plain = {
        name: value for name, value in values.items() if not name.startswith("factor.")
    }
    return {**table, **plain, **({"factor": factor} if factor else {})}


def _errors(items: Sequence[Item], table: Mapping[str, Any]) -> Errors:
    errors: Errors = {}
    for item in items:
        kind = "held out" if item.held_out else "fitted"
        for part, residual in zip(PARTS, item.residuals(table), strict=True):
            errors.setdefault((part, kind), []).append(float(np.expm1(residual)))
    return errors
