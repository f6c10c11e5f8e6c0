"""Fit NCCL's constants on H200 to measured collectives; run `python -m validation.calibrate_collectives`.

Minimises the squared logarithm of predicted over measured time (soft L1), one algorithm and protocol at a time:
each block of constants sees only its own rows. Every second size of every series is held out; both errors
are printed. The algorithm, protocol and channels of a row are NCCL's choice (sim/collectives/tuner.py),
not fitted. Writes sim/costs/hardware/h200-nccl.toml.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sim.collectives import constants, pairwise, plan_collective, ring, tree
from sim.collectives.plan import PAIR_OPS
from topologies import load_cluster
from validation import calibrate_overlap, collective_rows
from validation.collective_rows import Row

# Constants of each block that are fitted, with the range the fit may search.
MICRO = (1e-7, 1e-4)
RATE = (1e9, 1e11)
PACE = {
    "start": MICRO, "hop": MICRO, "wide": (1e-3, 1.0), "grain": (10.0, 1e5), "rate": RATE, "fill": RATE,
    "link": (0.5, 1.0), "ramp": (1e2, 3e8), "power": (0.2, 1.5), "sharp": (1.5, 12.0), "spill": (0.01, 3.0),
    "depth": (0.01, 1.0), "channel": (1e-9, 2e-6), "self_copy": (0.01, 1.0),
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


HEADER = """# NCCL 2.28.9 on NVIDIA H200, NVLink 4 through NVSwitch: how long its algorithms take on the GPU.
# Fitted by `python -m validation.calibrate_collectives --fit --write` to validation/cases/h200/collectives_*.jsonl
# (evidence: fitted, unless a line says otherwise). Seconds, bytes, bytes/s; the meaning of every name and the
# equations: docs/collectives.md and sim/collectives/constants.py.
{errors}

[nominal]
latency = {latency}             # s, route between two GPUs of the measured host (topologies/clusters/h200-host-4.toml)

[wire]                          # share of a link's payload bandwidth that NCCL's traffic can use
nvlink = {nvlink}                  # measured: 371 GB/s one-way send of 2 GiB over 397 GB/s of a copy
other = {other}                    # guess

[host]                          # measured: s between back-to-back eager calls through torch.distributed, <= 64 KiB
{host}
"""


def launches(rows: Sequence[Row]) -> dict[str, float]:
    """Host time of one call by operation: eager interval where the GPU is faster than the host."""
    by_op: dict[str, list[float]] = {}
    for row in rows:
        if row.size <= 2**16 and row.label == "default":
            by_op.setdefault(row.op, []).append(row.eager)
    return {op: float(np.median(values)) for op, values in by_op.items()}


def render(tables: dict[str, Any], errors: dict[tuple[str, str], list[float]], rows: Sequence[Row]) -> str:
    """The file of constants, with the errors of the fit in its head."""
    fitted = [e for (_, kind), values in errors.items() if kind == "fitted" for e in values]
    held = [e for (_, kind), values in errors.items() if kind != "fitted" for e in values]
    score = f"# Mean |error|: {np.abs(fitted).mean():.1%} of {len(fitted)} fitted rows, {np.abs(held).mean():.1%} of " \
            f"{len(held)} held-out rows (every second size of each series)."  # fmt: skip
    host = "\n".join(f"{op} = {value:.3g}" for op, value in sorted(launches(rows).items()))
    text = HEADER.format(
        errors=score, host=host, latency=tables["nominal"]["latency"], nvlink=tables["wire"]["nvlink"],
        other=tables["wire"]["other"],
    )  # fmt: skip
    sections = [(f"{algo}.{proto}", tables[algo][proto]) for algo in ("ring", "tree") for proto in tables[algo]]
    for name, table in [*sections, ("pairs", tables["pairs"]), ("overlap", tables["overlap"])]:
        text += f"\n[{name}]\n" + "".join(f"{key} = {_literal(value)}\n" for key, value in table.items())
    return text


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_literal(v)}" for key, v in value.items()) + " }"
    return f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=collective_rows.FILES, help="JSON lines")
    parser.add_argument("--fit", action="store_true", help="fit; without it, only score the present constants")
    parser.add_argument("--write", action="store_true", help="write the constants that were fitted")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    path = constants.FOLDER / "h200-nccl.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = collective_rows.read(options.files)
    blocks = items_by_block(rows)
    if options.fit:
        for block, items in sorted(blocks.items()):
            fit_block(tables, block, items)
        tables["overlap"] = calibrate_overlap.fit(calibrate_overlap.read(options.files))
    if options.rows:
        show_rows(tables, blocks)
    errors = report(tables, blocks)
    show(errors)
    if options.write:
        path.write_text(render(tables, errors, rows), encoding="utf-8")


def show_rows(tables: dict[str, Any], blocks: dict[Block, list[Item]]) -> None:
    table = constants.build(tables, "h200", "fitted")
    for block, items in sorted(blocks.items()):
        for row, predict in items:
            time, size = predict(table), row.size.bit_length() - 1
            print(
                f"{'-'.join(block):12} {row.label:12} {row.op:14} n{row.ranks} 2^{size:<2} "
                f"{'h' if row.held_out else ' '} {row.time * 1e6:9.1f} {time * 1e6:9.1f} {time / row.time - 1:+6.1%}"
            )


if __name__ == "__main__":
    main()
