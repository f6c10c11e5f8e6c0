"""Fits what NCCL gets out of a network to collectives across hosts: the `net_*` facts of a cluster file.

Minimises the squared logarithm of predicted over measured time (soft L1). Constants of the GPU stay as they are; every
second size is held out. The result is a cluster file that extends the one that was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from prestep.sim import files
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.errors import InputError
from prestep.topologies.core.quantity import Quantity
from prestep.validation.formats.collective_rows import IN_PLACE, Row, members
from prestep.validation.sets.predict_collective import cluster_of, gpus_of

RANGE = files.beside(__file__)["ranges"]
LEAST = 3  # rows that a fact rests on
SMALL, LIGHT = 2**20, 0.3  # smaller sizes are judged by no limit: they weigh less


@dataclass(frozen=True)
class NetworkFit:
    """Facts by key, and signed errors of fitted and held-out rows before and after."""

    facts: dict[str, float]
    errors: dict[str, tuple[np.ndarray, np.ndarray]]

    @property
    def summary(self) -> str:
        """Facts, and errors before and after."""
        lines = [f"{key} = {_text(key, value)}" for key, value in self.facts.items()]
        for kind, (before, after) in self.errors.items():
            if len(before):
                lines.append(
                    f"{kind}: mean |error| {_mean(before)} before, {_mean(after)} after, {len(before)} rows"
                )
        return "\n".join(lines)


def _mean(errors: np.ndarray) -> str:
    return f"{np.abs(errors).mean():.1%}"


def fit(rows: Sequence[Row], fixed: dict[str, float] | None = None) -> NetworkFit:
    """Facts of the network that the rows of several hosts ran on.

    Parameters
    ----------
    rows
        Measured collectives; those of one host are left out.
    fixed
        Facts that keep their value.

    Raises
    ------
    InputError
        If no row is of several hosts.
    """
    rows = [row for row in rows if (row.hosts or 1) > 1]
    if not rows:
        found, expected = "no row of several hosts", "collectives across hosts"
        raise InputError.of("calibrate", "--network", found, expected)
    fixed = fixed or {}
    used = [row for row in rows if not row.held_out]
    facts = fixed | _optimum(used, _keys(rows, fixed), fixed)
    return NetworkFit(facts, _errors(rows, facts))


def _keys(rows: Sequence[Row], fixed: dict[str, float]) -> list[str]:
    """Facts that are fitted: those that enough rows rest on."""
    # Above a size that is given, ranks agree before each message.
    agreed = {"net_rendezvous"} if "net_eager" in fixed else set()
    touched = [one | agreed if "net_ll" in one else one for one in _touched(rows)]
    counts = {key: sum(key in one for one in touched) for key in RANGE}
    return [key for key in RANGE if counts[key] >= LEAST and key not in fixed]


def _optimum(
    rows: Sequence[Row], keys: Sequence[str], fixed: dict[str, float]
) -> dict[str, float]:
    """The facts `keys` that fit the rows best."""
    low, high, begin = (np.log([RANGE[key][k] for key in keys]) for k in range(3))
    measured = np.array([row.time for row in rows])
    weights = np.array([1.0 if row.size >= SMALL else LIGHT for row in rows])

    def residuals(x: np.ndarray) -> np.ndarray:
        facts = fixed | dict(zip(keys, np.exp(x), strict=True))
        weighted: np.ndarray = weights * np.log(_times(rows, facts) / measured)
        return weighted

    result = least_squares(
        residuals,
        begin,
        bounds=(low, high + 1e-9),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=1e-3,
    )
    return dict(zip(keys, map(float, np.exp(result.x)), strict=True))


def _errors(
    rows: Sequence[Row], facts: dict[str, float]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Signed errors before and after, of rows that were fitted to and of those held out."""
    measured = np.array([row.time for row in rows])
    before = _times(rows, {}) / measured - 1
    after = _times(rows, facts) / measured - 1
    held_out = np.array([row.held_out for row in rows])
    return {
        "fitted": (before[~held_out], after[~held_out]),
        "held out": (before[held_out], after[held_out]),
    }


def _touched(rows: Sequence[Row]) -> list[set[str]]:
    """Facts that each row's time may rest on."""
    touched = []
    for row in rows:
        plan = _plan(row, cluster_of(row))
        if plan.algo == "pairwise":
            several = row.op in ("all_to_all", "gather", "scatter")
            touched.append(
                {"net_pairs_share", "net_simple", "net_message", "net_inject"}
                | (set() if several else {"net_channel"})
            )
        else:
            hops = {f"net_{plan.proto.lower()}"}
            if plan.algo == "ring":
                hops.add("net_post_ll" if plan.proto == "LL" else "net_post")
            touched.append(hops | ({"net_share"} if row.size >= SMALL else set()))
    return touched


def _plan(row: Row, fabric: Any) -> Any:
    op, ranks = members(row, gpus_of(row, fabric))
    return plan_collective(
        op, row.size, ranks, fabric, row.wanted, in_place=row.op.endswith(IN_PLACE)
    )


def _times(rows: Sequence[Row], facts: dict[str, float]) -> np.ndarray:
    """Predicted seconds under these facts."""
    changed: dict[int, Any] = {}
    times = []
    for row in rows:
        fabric = cluster_of(row)
        if id(fabric) not in changed:
            others = {
                key: fact
                for key, fact in fabric.facts.items()
                if not key.startswith("net_")
            }
            new = {key: Quantity(value, "fitted", "") for key, value in facts.items()}
            copy = fabric.with_facts(fabric.name, others | new)
            changed[id(fabric)] = copy.with_routes_of(fabric)
        same = changed[id(fabric)]
        times.append(_plan(row, same).duration(same.links.bandwidth))
    return np.array(times)


def _text(key: str, value: float) -> str:
    if key == "net_eager":
        return f'"{value / 1024:g} KiB"'
    if key in ("net_share", "net_pairs_share"):
        return f"{value:.3g}"
    rate, time = f'"{value / 1e9:.3g} GB/s"', f'"{value * 1e6:.3g} us"'
    return rate if key == "net_channel" else time


def write(result: NetworkFit, cluster: str, path: Path, logs: Sequence[Path]) -> None:
    """Write the cluster file.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    files.write_text(path, render(result, cluster, logs))


def render(result: NetworkFit, cluster: str, logs: Sequence[Path]) -> str:
    """A cluster file with the facts."""
    names = ", ".join(path.name for path in logs)
    lines = [f"# Written by `prestep calibrate --network` from {names}."]
    lines += [f"# {line}" for line in result.summary.splitlines() if "rows" in line]
    lines += [f'extends = "{cluster}"']
    lines += [
        f'{key} = {{ value = {_text(key, value)}, evidence = "fitted", source = "{names}" }}'
        for key, value in result.facts.items()
    ]
    return "\n".join(lines) + "\n"
