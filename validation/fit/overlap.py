"""Fits what kernels and collectives cost each other (`[overlap]` of a file of constants) to overlap rows of a machine.

Every row is run by the engine (`overlap_run`): a kernel alone is the row's, a collective is predicted with the
constants that the file gets. Minimises the squared logarithm of predicted over measured time of both sides (soft L1).
Every third row is held out, so two thirds are fitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sim.collectives.constants import OVERLAP, Constants
from sim.collectives.plan import Plan
from sim.collectives.planner import plan_collective
from sim.costs import load_gpu
from sim.costs.interference import (
    PRODUCTS,
    ROUNDS,
    SMALLEST_TILE,
    STREAM,
    TILE,
    laid_over,
)
from sim.costs.kinds import work
from validation.fit.collectives import Errors, planner
from validation.formats.collective_rows import members
from validation.formats.overlap_rows import Overlap
from validation.sets.overlap_run import side_by_side
from validation.sets.predict_collective import alone_of, cluster_of, gpus_of

LEAST = 3  # rows that a constant rests on, those held out not counted
THIRD = 3  # one row of so many is held out
FACTOR = (1.0, 6.0)  # range of a factor
STEP = 0.02  # of a derivative, in logarithms: collectives that wait for the end of a kernel go in steps
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

    def residuals(self, table: Mapping[str, Any]) -> list[float]:
        """Logarithms of predicted over measured times, kernels and collectives."""
        row = self.row
        made = side_by_side(
            row.kernel,
            row.compute,
            row.comm,
            self.plan,
            self.bandwidth,
            self.gpu,
            laid_over(table),
        )
        return [
            float(np.log(made[0] / row.compute_beside)),
            float(np.log(made[1] / row.comm_beside)),
        ]

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
    known = dict(table.tables.get(OVERLAP, {}))
    items = [_item(row, place, table) for place, row in enumerate(rows)]
    used = [item for item in items if not item.held_out]
    counts = {
        name: sum(name in item.touched for item in used)
        for item in items
        for name in sorted(item.touched)
    }
    fitted = tuple(sorted(name for name, count in counts.items() if count >= LEAST))
    short = {
        name: count for name, count in sorted(counts.items()) if name not in fitted
    }
    left = tuple(
        f"overlap.{name} ({count} {'row' if count == 1 else 'rows'})"
        for name, count in short.items()
    )
    before = _errors(items, known)
    if not fitted:
        return Fit(known, (), left, before, before)
    found = _optimum(used, fitted, known)
    return Fit(found, fitted, left, before, _errors(items, found))


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
    kernel, sms, told = row.kernel, load_gpu(gpu).sms, laid_over({})
    if kernel.kind not in PRODUCTS:
        return frozenset(
            {
                "streaming" if work(kernel)[1] >= STREAM else "communication",
                f"factor.{kernel.kind}",
            }
        )
    m, n, k = kernel.shape
    if m * n < (sms - min(plan.channels, sms - 1)) * SMALLEST_TILE:
        return frozenset({"communication"})
    if m * n <= ROUNDS * sms * TILE:
        return frozenset({"communication", "static"})
    held_down = told.least <= 2.0 * m * n * k / row.compute <= told.free
    return frozenset({"communication", "free"} if held_down else {"communication"})


def _optimum(
    items: Sequence[Item], names: Sequence[str], known: Mapping[str, Any]
) -> dict[str, Any]:
    ranges = [_range(name, items) for name in names]
    low, high = (np.log([one[k] for one in ranges]) for k in range(2))
    high += 1e-6
    begin = np.clip(
        np.log([_get(known, name) for name in names]), low + 1e-9, high - 1e-9
    )

    # A side counts if all that it rests on is fitted.
    settled = np.array([item.settled(names) for item in items]).ravel()

    def one(item: Item, x: np.ndarray) -> list[float]:
        return item.residuals(
            _set(known, dict(zip(names, np.exp(x).tolist(), strict=True)))
        )

    @lru_cache(maxsize=2)
    def base(x: tuple[float, ...]) -> np.ndarray:
        return np.where(
            settled, np.array([one(item, np.array(x)) for item in items]).ravel(), 0.0
        )

    def slope(x: np.ndarray) -> np.ndarray:
        here, columns = base(tuple(x)).reshape(-1, 2), []
        for column, name in enumerate(names):
            step = STEP if x[column] + STEP < high[column] else -STEP
            moved = x.copy()
            moved[column] += step
            # Only rows that rest on a constant are run again.
            there = [
                one(item, moved) if name in item.touched else old
                for item, old in zip(items, here, strict=True)
            ]
            columns.append(
                np.where(settled, (np.array(there) - here).ravel(), 0.0) / step
            )
        return np.array(columns).T

    # Waits for whole kernels make steps of it, so the fit begins twice, also well above.
    starts = (begin, np.clip(begin + np.log(1.25), low + 1e-9, high - 1e-9))
    results = [
        least_squares(
            lambda x: base(tuple(x)),
            start,
            jac=slope,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.05,
            ftol=1e-3,
            xtol=1e-3,
            max_nfev=8,
        )
        for start in starts
    ]
    result = min(results, key=lambda one: float(one.cost))
    return _set(known, dict(zip(names, np.exp(result.x).tolist(), strict=True)))


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
    told = laid_over(table)
    head, _, kind = name.partition(".")
    if kind:
        return float(told.factor[kind])
    return float(getattr(told, head)) or told.communication


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
