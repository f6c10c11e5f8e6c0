"""Fits constants of NCCL's algorithms on one machine to measured collectives.

Minimises the squared logarithm of predicted over measured time (soft L1), one algorithm and protocol at a time: each
block of constants sees only its own rows, less those held out. The algorithm, protocol and channels of a row are NCCL's
choice (sim/collectives/nccl/tuner.py), not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from prestep.sim import files
from prestep.sim.collectives import constants
from prestep.sim.collectives.algorithms import algorithms, pairwise
from prestep.sim.collectives.assemble import call_of
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import tuner
from prestep.sim.collectives.plan import PAIR_OPS, Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.validation.formats.collective_rows import Row, members
from prestep.validation.sets.predict_collective import cluster_of, gpus_of

# Constants of each block that are fitted, with the range the fit may search.
PACE = {key: tuple(ends) for key, ends in files.beside(__file__)["pace"].items()}
# What a few rows can settle; the others need sizes from bytes to gigabytes.
FEW = ("start", "hop", "rate", "link", "net")
FAR = (
    0.1,
    10.0,
)  # times as large, at which rows may rest on a constant that do not near its value
NUDGE = 1e-7  # of a derivative, in logarithms
Block = tuple[str, ...]
Predictor = Callable[[constants.Constants], float]
Item = tuple[Row, Predictor]
Errors = dict[tuple[str, str], list[float]]


def items_by_block(rows: Sequence[Row]) -> dict[Block, list[Item]]:
    """Rows with a function that predicts them from constants, by the block of constants they rest on."""
    blocks: dict[Block, list[Item]] = {}
    known: dict[Any, tuple[Block, Predictor]] = {}
    for row in rows:
        ran = row.op, row.size, row.wanted, _place(row)
        if ran not in known:
            known[ran] = _planned(row)
        block, predictor = known[ran]
        blocks.setdefault(block, []).append((row, predictor))
    return blocks


def _place(row: Row) -> tuple[object, ...]:
    """Where a row was measured."""
    return row.cluster, row.ranks, row.hosts, row.per_host


def _planned(row: Row) -> tuple[Block, Predictor]:
    """The constants that a row rests on, and what predicts it from them."""
    fabric = cluster_of(row)
    op, ranks = members(row, gpus_of(row, fabric))
    chosen = plan_collective(op, row.size, ranks, fabric, row.wanted)
    block = ("pairs",) if op in PAIR_OPS else (chosen.algo, chosen.proto)
    return block, _predictor(row, op, ranks, fabric, chosen)


def _predictor(
    row: Row, op: str, ranks: Sequence[str], fabric: Any, chosen: Any
) -> Predictor:
    bandwidth, plan = fabric.links.bandwidth, planner(row, op, ranks, fabric, chosen)
    return lambda table: float(plan(table).duration(bandwidth))


def planner(
    row: Row, op: str, ranks: Sequence[str], fabric: Any, chosen: Plan
) -> Callable[[constants.Constants], Plan]:
    """What plans a row's collective, as NCCL chose it, from constants."""
    module: Any = pairwise if op in PAIR_OPS else algorithms()[chosen.algo]
    channels = 0
    if op not in PAIR_OPS:
        group = group_of(fabric, ranks, row.wanted)
        model = tuner.model_of(group, fabric, row.wanted)
        channels = tuner.channels_of(chosen.algo, model)
    call = call_of(op, row.size, ranks, fabric, row.wanted, chosen.proto, channels)

    def plan(table: constants.Constants) -> Plan:
        made: Plan = module.plan(replace(call, constants=table))
        return made

    return plan


def free(
    table: Mapping[str, Any], keys: Sequence[str] = tuple(PACE)
) -> list[tuple[str, ...]]:
    """Paths of the constants of one block that are fitted."""
    paths: list[tuple[str, ...]] = []
    for key, value in table.items():
        if key not in keys:
            continue
        paths += [(key, op) for op in value] if isinstance(value, Mapping) else [(key,)]
    return paths


def _get(table: dict[str, Any], path: tuple[str, ...]) -> float:
    for key in path:
        table = table[key]
    return float(table)  # type: ignore[arg-type]


def _set(table: dict[str, Any], path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value


def fit_block(
    tables: dict[str, Any],
    block: Block,
    items: Sequence[Item],
    gpu: str,
    keys: Sequence[str] = tuple(PACE),
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> int:
    """Replace the constants of one block by the best ones for the rows that are not held out; how many were fitted.

    `ranges` replaces what PACE lets the fit search.
    """
    target = tables
    for key in block:
        target = target[key]
    used = [item for item in items if not item[0].held_out]
    fit = _BlockFit(tables, target, used, gpu)
    moving = {path: fit.moved(path) for path in free(target, keys)}
    moving = {path: rows for path, rows in moving.items() if rows.any()}
    if not used or not moving:
        return 0
    fit.minimise(moving, PACE | dict(ranges))
    return len(moving)


@dataclass(frozen=True)
class _BlockFit:
    """The constants of one block, `target` in `tables`, and the rows that they are fitted to."""

    tables: dict[str, Any]
    target: dict[str, Any]
    rows: Sequence[Item]
    gpu: str

    def moved(self, path: Block) -> np.ndarray:
        """Which rows rest on a constant, near its value or far off; none where none does near: a fit would leave it."""
        moved, known = np.zeros(len(self.rows), bool), self._at_start
        for factor in (0.8, 1.25, 0.1, 10.0):
            if factor in FAR and not moved.any():
                break
            at = np.flatnonzero(~moved).tolist()
            times = np.exp(self._nudged(path, factor, at))
            moved[at] = ~np.isclose(known[at], times, rtol=1e-9, atol=0.0)
        return moved

    @cached_property
    def _at_start(self) -> np.ndarray:
        """Predicted over measured times with the constants before the fit."""
        return np.asarray(np.exp(self._of(range(len(self.rows)))))

    def _nudged(self, path: Block, factor: float, places: Sequence[int]) -> np.ndarray:
        """Residuals of some rows with a constant that is so many times as large."""
        value = _get(self.target, path)
        _set(self.target, path, value * factor)
        residuals = self._of(places)
        _set(self.target, path, value)
        return residuals

    def residuals(self, paths: Sequence[Block], x: np.ndarray) -> np.ndarray:
        """Logarithms of predicted over measured times; the constants of a point stay in the tables."""
        for path, value in zip(paths, np.exp(x), strict=True):
            _set(self.target, path, float(value))
        return self._of(range(len(self.rows)))

    def _of(self, places: Sequence[int]) -> np.ndarray:
        """Residuals of some rows, with the constants that are in the tables."""
        table = constants.build(self.tables, self.gpu, "fitted")
        rows = [self.rows[at] for at in places]
        # Rows of the same collective share what predicts them: each is planned once.
        times = {predict: predict(table) for predict in {one for _, one in rows}}
        return np.array([np.log(times[predict] / row.time) for row, predict in rows])

    def slopes(
        self, moving: Mapping[Block, np.ndarray], x: np.ndarray, high: np.ndarray
    ) -> np.ndarray:
        """Change of the residuals with each constant; only rows that rest on it are predicted again."""
        here = self.residuals([*moving], x)
        columns = np.zeros((len(x), len(self.rows)))
        for at, (path, rows) in enumerate(moving.items()):
            step = NUDGE if x[at] + NUDGE < high[at] else -NUDGE
            places = np.flatnonzero(rows)
            there = self._nudged(path, float(np.exp(step)), places.tolist())
            columns[at, places] = (there - here[places]) / step
        return columns.T

    def minimise(
        self,
        moving: Mapping[Block, np.ndarray],
        ranges: Mapping[str, tuple[float, float]],
    ) -> None:
        """Puts the best constants into the tables; `moving` has the rows that rest on each."""
        paths = [*moving]
        low, high = (np.log([ranges[path[0]][k] for path in paths]) for k in range(2))
        own = np.log([_get(self.target, path) for path in paths])
        result = least_squares(
            lambda x: self.residuals(paths, x),
            np.clip(own, low + 1e-6, high - 1e-6),
            jac=lambda x: self.slopes(moving, x, high),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.05,
            ftol=1e-5,
            xtol=1e-5,
            max_nfev=60,
        )
        self.residuals(paths, result.x)


def errors_of(
    tables: dict[str, Any], blocks: dict[Block, list[Item]], gpu: str
) -> Errors:
    """Signed relative errors by series and by whether the row was fitted."""
    table = constants.build(tables, gpu, "fitted")
    errors: Errors = {}
    for items in blocks.values():
        for row, predict in items:
            kind = "held out" if row.held_out else "fitted"
            errors.setdefault((row.series, kind), []).append(
                predict(table) / row.time - 1
            )
    return errors


def show(errors: Errors) -> str:
    """Errors as a table."""
    lines = [
        f"{'series':26} {'rows':9} {'n':>4} {'mean |e|':>9} {'bias':>7} {'worst':>7}"
    ]
    for (series, kind), values in sorted(errors.items()):
        e = np.array(values)
        worst = e[np.argmax(np.abs(e))]
        lines.append(
            f"{series:26} {kind:9} {len(e):4} {np.abs(e).mean():9.1%} {e.mean():+7.1%} {worst:+7.1%}"
        )
    return "\n".join(lines)


def literal(value: Any) -> str:
    """A number, text or table of them as TOML."""
    if isinstance(value, Mapping):
        named = {
            key if key.replace("_", "").isalnum() else f'"{key}"': literal(v)
            for key, v in value.items()
        }
        return "{ " + ", ".join(f"{key} = {v}" for key, v in named.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
