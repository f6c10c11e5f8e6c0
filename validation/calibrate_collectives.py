"""Fit NCCL's constants on H200 to measured collectives; run `python -m validation.calibrate_collectives`.

Minimises the squared logarithm of predicted over measured time (soft L1), one algorithm and protocol at a time:
each block of constants sees only its own rows. Every second size of every series is held out; both errors
are printed. The algorithm, protocol and channels of a row are NCCL's choice (sim/collectives/tuner.py),
not fitted. Writes sim/costs/hardware/h200-nccl.toml.
"""

from __future__ import annotations

import argparse
import copy
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sim.collectives import constants, pairwise, plan_collective, ring, tree
from sim.collectives.plan import PAIR_OPS
from topologies import load_cluster
from validation import collective_rows
from validation.collective_rows import Row

# Constants of each block that are fitted, with the range the fit may search.
MICRO = (1e-7, 1e-4)
RATE = (1e9, 1e11)
PACE = {
    "start": MICRO, "hop": MICRO, "wide": (1e-3, 1.0), "grain": (10.0, 1e5), "rate": RATE, "fill": RATE,
    "link": (0.5, 1.0), "ramp": (1e2, 3e8), "power": (0.2, 1.5), "sharp": (1.5, 12.0), "spill": (0.01, 3.0),
    "cache": (4e6, 2e8), "depth": (0.01, 1.0), "channel": (1e-9, 2e-6), "self_copy": (0.01, 1.0),
    "ends": (0.7, 2.5), "settle": (0.01, 3.0),
}  # fmt: skip
Block = tuple[str, ...]
Item = tuple[Row, Callable[[constants.Constants], float]]


def items_by_block(rows: Sequence[Row]) -> dict[Block, list[Item]]:
    """Rows with a function that predicts them from constants, by the block of constants they rest on."""
    blocks: dict[Block, list[Item]] = {}
    for row in rows:
        fabric = load(row)
        op, ranks = collective_rows.members(row, fabric.gpus)
        chosen = plan_collective(op, row.size, ranks, fabric, row.wanted)
        block = ("pairs",) if op in PAIR_OPS else (chosen.algo, chosen.proto)
        blocks.setdefault(block, []).append((row, _predictor(row, op, ranks, fabric, chosen)))
    return blocks


_fabrics: dict[int, Any] = {}


def load(row: Row) -> Any:
    """The measured host a row ran on (send_0_1 on four GPUs uses two, but channels for four)."""
    if row.ranks not in _fabrics:
        _fabrics[row.ranks] = load_cluster(f"h200-host-{row.ranks}")
    return _fabrics[row.ranks]


def _predictor(row: Row, op: str, ranks: Sequence[str], fabric: Any, chosen: Any) -> Callable[..., float]:
    bandwidth = fabric.links.bandwidth

    def predict(table: constants.Constants) -> float:
        if op in PAIR_OPS:
            plan = pairwise.plan(op, row.size, ranks, fabric, row.wanted, table=table)
        else:
            module = ring if chosen.algo == "ring" else tree
            plan = module.plan(
                op, row.size, ranks, fabric, row.wanted, chosen.proto, available(row), table=table
            )  # fmt: skip
        return plan.duration(bandwidth)

    return predict


def available(row: Row) -> int:
    """Channels of the communicator: 24, or the limit."""
    return min(24, row.wanted.max_channels or 24)


def free(table: dict[str, Any]) -> list[tuple[str, ...]]:
    """Paths of the constants of one block that are fitted."""
    paths: list[tuple[str, ...]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            paths += [(key, op) for op in value]
        elif key in PACE:
            paths.append((key,))
    return paths


def _get(table: dict[str, Any], path: tuple[str, ...]) -> float:
    for key in path:
        table = table[key]
    return float(table)  # type: ignore[arg-type]


def _set(table: dict[str, Any], path: tuple[str, ...], value: float) -> None:
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value


def fit_block(tables: dict[str, Any], block: Block, items: Sequence[Item]) -> None:
    """Replace the constants of one block by the best ones for the rows that are not held out."""
    tables = tables  # changed in place
    target = tables
    for key in block:
        target = target[key]
    used = [item for item in items if not item[0].held_out]
    paths = free(target)
    low = np.log([PACE[path[0]][0] for path in paths])
    high = np.log([PACE[path[0]][1] for path in paths])
    begin = np.clip(np.log([_get(target, path) for path in paths]), low + 1e-6, high - 1e-6)

    def residuals(x: np.ndarray) -> np.ndarray:
        for path, value in zip(paths, np.exp(x), strict=True):
            _set(target, path, float(value))
        table = constants.build(tables, "h200", "fitted")
        return np.array([np.log(predict(table) / row.time) for row, predict in used])

    result = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.05, max_nfev=60)
    residuals(result.x)


def report(tables: dict[str, Any], blocks: dict[Block, list[Item]]) -> dict[tuple[str, str], list[float]]:
    """Signed relative errors by series and by whether the row was fitted."""
    table = constants.build(tables, "h200", "fitted")
    errors: dict[tuple[str, str], list[float]] = {}
    for items in blocks.values():
        for row, predict in items:
            kind = "held out" if row.held_out else "fitted"
            errors.setdefault((row.series, kind), []).append(predict(table) / row.time - 1)
    return errors


def show(errors: dict[tuple[str, str], list[float]]) -> None:
    print(f"{'series':26} {'rows':9} {'n':>4} {'mean |e|':>9} {'bias':>7} {'worst':>7}")
    for (series, kind), values in sorted(errors.items()):
        e = np.array(values)
        worst = e[np.argmax(np.abs(e))]
        print(f"{series:26} {kind:9} {len(e):4} {np.abs(e).mean():9.1%} {e.mean():+7.1%} {worst:+7.1%}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=collective_rows.FILES, help="JSON lines")
    parser.add_argument("-o", "--output", type=Path, help="write the constants here (default: only report)")
    parser.add_argument("--fit", action="store_true", help="fit; without it, only score the present constants")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    tables = tomllib.loads((constants.FOLDER / "h200-nccl.toml").read_text(encoding="utf-8"))
    blocks = items_by_block(collective_rows.read(options.files))
    if options.fit:
        for block, items in sorted(blocks.items()):
            fit_block(tables, block, items)
    if options.rows:
        table = constants.build(tables, "h200", "fitted")
        for block, items in sorted(blocks.items()):
            for row, predict in items:
                t = predict(table)
                size = row.size.bit_length() - 1
                print(f"{'-'.join(block):12} {row.label:12} {row.op:14} n{row.ranks} 2^{size:<2} "
                      f"{'h' if row.held_out else ' '} {row.time * 1e6:9.1f} {t * 1e6:9.1f} {t / row.time - 1:+6.1%}")
    show(report(tables, blocks))
    if options.output:
        import json
        options.output.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
