"""Fit NCCL's constants on H200 to measured collectives; run `python -m lab.fit.calibrate_collectives`.

How it fits: `prestep.validation.fit.collectives`; what buffers cost that are not aligned, to rows of their own
afterwards.
Every second size of every series is held out; both errors are printed. Writes sim/costs/hardware/h200-nccl.toml.
For other machines: `prestep calibrate`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab import CASES
from prestep.sim import files
from prestep.sim.collectives import constants
from prestep.validation.fit.collectives import (
    Block,
    Errors,
    Item,
    errors_of,
    fit_block,
    items_by_block,
    literal,
    show,
)
from prestep.validation.formats import collective_reader
from prestep.validation.formats.collective_rows import Row

#: What constants are fitted to.
FILES = tuple(
    CASES / "h200" / f"collectives_{name}.jsonl"
    for name in ("2gpu", "4gpu", "channels_2gpu")
)
#: Ranks' parts do not begin at multiples of 16 bytes.
UNALIGNED = CASES / "h200" / "collectives_unaligned.jsonl"
GPU = "h200"
# A rank that only sends or only receives does no more than one that does both. Few rows settle it (those with one
# channel): left free it makes up for other errors, 1.3 in an all-reduce with LL.
RANGES = {"ends": (0.5, 1.0)}

HEADER = """# NCCL 2.28.9 on NVIDIA H200, NVLink 4 through NVSwitch: how long its algorithms take on the GPU.
# Fitted by `python -m lab.fit.calibrate_collectives --fit --write` to lab/cases/h200/collectives_*.jsonl
# (evidence: fitted, unless a line says otherwise). Seconds, bytes, bytes/s; the meaning of every name and the
# equations: docs/collectives.md and sim/collectives/constants.py.
{errors}

[nominal]
latency = {latency}             # s, route between two GPUs of the measured host (topologies/clusters/h200-host-4.toml)
# fitted: s that a call through torch.distributed takes longer on the GPU than one of a loop of nccl-tests, to whose one
# stream it comes after the call before: every second of the 64 rows up to 64 KiB of 8x H200 in NVIDIA aiconfigurator.
streams = {streams}

[wire]                          # share of a link's payload bandwidth that NCCL's traffic can use
nvlink = {nvlink}                  # measured: 371 GB/s one-way send of 2 GiB over 397 GB/s of a copy
other = {other}                    # guess

[host]                          # measured: s between back-to-back eager calls through torch.distributed, <= 64 KiB
{host}
"""


def read(files: Iterable[Path] = FILES) -> list[Row]:
    """All rows that can be compared; every second size of a series is held out of fits."""
    each = (collective_reader.read_lines(file)[0] for file in files)
    return [row for rows in each for row in rows if not row.skip]


def launches(rows: Sequence[Row]) -> dict[str, float]:
    """Host time of one call by operation: eager interval where the GPU is faster than the host."""
    by_op: dict[str, list[float]] = {}
    for row in rows:
        if row.size <= 2**16 and row.label == "default":
            by_op.setdefault(row.op, []).append(row.eager)
    return {op: float(np.median(values)) for op, values in by_op.items()}


def render(tables: dict[str, Any], errors: Errors, rows: Sequence[Row]) -> str:
    """The file of constants, with the errors of the fit in its head."""
    host = sorted(launches(rows).items())
    text = HEADER.format(
        errors=_score(errors),
        host="\n".join(f"{op} = {value:.3g}" for op, value in host),
        latency=tables["nominal"]["latency"],
        streams=tables["nominal"]["streams"],
        nvlink=tables["wire"]["nvlink"],
        other=tables["wire"]["other"],
    )
    sections = {
        f"{algo}.{proto}": tables[algo][proto]
        for algo in ("ring", "tree")
        for proto in tables[algo]
    }
    for name, table in {**sections, "pairs": tables["pairs"]}.items():
        lines = (f"{key} = {literal(value)}\n" for key, value in table.items())
        text += f"\n[{name}]\n" + "".join(lines)
    return text


def _score(errors: Errors) -> str:
    """Mean errors of fitted rows and of those held out."""
    parts: dict[bool, list[float]] = {True: [], False: []}
    for (_, kind), values in errors.items():
        parts[kind == "fitted"] += values
    fitted, others = parts[True], parts[False]
    return (
        f"# Mean |error|: {np.abs(fitted).mean():.1%} of {len(fitted)} fitted rows, {np.abs(others).mean():.1%} of "
        f"{len(others)} held-out rows (every second size of each series)."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Scores the constants, after a fit if one is asked for."""
    options = _parser().parse_args(arguments)
    path = constants.FOLDER / "h200-nccl.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = read(options.files)
    blocks = items_by_block(rows)
    if options.fit:
        _fit(tables, blocks)
    if options.rows:
        show_rows(tables, blocks)
    errors = errors_of(tables, blocks, GPU)
    print(show(errors))
    if options.write:
        files.write_text(path, render(tables, errors, rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add, default = parser.add_argument, FILES
    add("files", nargs="*", type=Path, default=default, help="JSON lines")
    without = "fit; without it, only score the present constants"
    add("--fit", action="store_true", help=without)
    add("--write", action="store_true", help="write the constants that were fitted")
    add("--rows", action="store_true", help="print every row")
    return parser


def _fit(tables: dict[str, Any], blocks: dict[Block, list[Item]]) -> None:
    """Fits every block of constants to its rows."""
    for block, items in sorted(blocks.items()):
        fit_block(tables, block, items, GPU, ranges=RANGES)
    # Rows of another start of the machine: of them that constant alone.
    unaligned = items_by_block(read([UNALIGNED]))
    for block, items in sorted(unaligned.items()):
        fit_block(tables, block, items, GPU, keys=("unaligned",))


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
