"""Fits NCCL's constants to measurements of a machine: what `prestep calibrate` does.

Takes logs of nccl-tests (text or JSON) and the harness's JSON lines. Every second size of a series is held out, and
both errors are told. What the rows say nothing of stays as it was, and the file says so.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import files, progress
from prestep.sim.collectives import constants
from prestep.sim.collectives.constants import OVERLAP
from prestep.sim.errors import InputError, Mistake
from prestep.validation.fit import overlap as fit_overlap
from prestep.validation.fit.collectives import (
    FEW,
    PACE,
    Block,
    Errors,
    Item,
    errors_of,
    fit_block,
    items_by_block,
    literal,
    show,
)
from prestep.validation.fit.logs import FORMATS
from prestep.validation.formats.collective_rows import TESTED, Row
from prestep.validation.formats.overlap_rows import Overlap
from prestep.validation.sets.predict_collective import alone_of, cluster_of, loadable

LEAST = 4  # rows of a block that are not held out; fewer settle nothing


@dataclass(frozen=True)
class Calibration:
    """Constants fitted to a machine.

    Attributes
    ----------
    gpu : str
        Model of the cluster's GPUs.
    tables : dict
        All constants, as the file of a GPU has them.
    fitted : tuple of str
        Tables that the rows settled.
    left : tuple of str
        Tables that they touch, with too few rows.
    before, after : Errors
        Signed errors by series and (fitted, held out).
    overlap : Fit
        The same of kernels and collectives beside each other.
    """

    gpu: str
    tables: dict[str, Any]
    fitted: tuple[str, ...]
    left: tuple[str, ...]
    before: Errors
    after: Errors
    overlap: fit_overlap.Fit = fit_overlap.NOTHING

    @property
    def summary(self) -> str:
        """Errors before and after, and what was fitted."""
        before, after = (
            self.before | self.overlap.before,
            self.after | self.overlap.after,
        )
        lines = ["before:", show(before), "", "after:", show(after), ""]
        lines.append(f"fitted: {', '.join(self.fitted) or 'nothing'}")
        if self.left:
            lines.append(f"too few rows, left as they were: {', '.join(self.left)}")
        return "\n".join([*lines, *self.overlap.words])

    def figure(self, kind: str, overlap: bool = False) -> str:
        """Mean absolute error of "fitted" or "held out" rows, of collectives or of overlap."""
        after = self.overlap.after if overlap else self.after
        parts = [values for (_, rows), values in after.items() if rows == kind]
        errors = [abs(error) for values in parts for error in values]
        return f"{np.mean(errors):.1%} of {len(errors)} rows" if errors else "no rows"


def calibrate(rows: Sequence[Row], beside: Sequence[Overlap] = ()) -> Calibration:
    """Constants for the machine of the rows; those of overlap from `beside`, once those of collectives are fitted.

    Raises
    ------
    InputError
        If there are no rows, or they are of several kinds of GPU, or their cluster cannot be built.
    """
    gpu = _gpu_of([*rows, *map(alone_of, beside)])
    own = constants.load(gpu)
    tables = copy.deepcopy(dict(own.tables))
    blocks = items_by_block(rows)
    before = errors_of(tables, blocks, gpu)
    fitted, left = _fit_blocks(tables, blocks, gpu)
    if own.evidence == "guess":
        _grade(tables, fitted)
    after = errors_of(tables, blocks, gpu)
    overlap = fit_overlap.fit(beside, constants.build(tables, gpu, "fitted"))
    if overlap.fitted:
        tables[OVERLAP] = overlap.table
    fitted += [f"{OVERLAP}.{name}" for name in overlap.fitted]
    _note_streams(tables, rows)
    written = _to_write(tables, fitted, gpu)
    return Calibration(gpu, written, tuple(fitted), tuple(left), before, after, overlap)


def _note_streams(tables: dict[str, Any], rows: Sequence[Row]) -> None:
    """Constants of rows that nccl-tests timed have its calls in one stream already."""
    if any(row.label in TESTED for row in rows):
        tables["nominal"] = {**tables["nominal"], "streams": 0.0}


def _fit_blocks(
    tables: dict[str, Any], blocks: dict[Block, list[Item]], gpu: str
) -> tuple[list[str], list[str]]:
    """Names of the blocks that were fitted, and of those with too few rows."""
    fitted: list[str] = []
    left: list[str] = []
    for block, items in progress.track(sorted(blocks.items()), "groups of constants"):
        done = _fit(tables, block, items, gpu)
        (fitted if done else left).append(".".join(block))
    return fitted, left


def _to_write(
    tables: dict[str, Any], fitted: Sequence[str], gpu: str
) -> dict[str, Any]:
    """Tables of the GPU's file: its own and those that were fitted."""
    touched = {name.partition(".")[0] for name in fitted}
    # A file of overlap alone says nothing of collectives by themselves.
    alone = touched == {OVERLAP}
    return {
        name: table
        for name, table in tables.items()
        if name in touched or not (alone or _shared(name, gpu))
    }


PROTOS = ("LL", "LL128", "Simple")


def _shared(name: str, gpu: str) -> bool:
    """Whether a table is every GPU's (extra-nccl.toml) and not of this GPU's own file."""
    return name not in tomllib.loads(constants.file_of(gpu).read_text(encoding="utf-8"))


def _gpu_of(rows: Sequence[Row]) -> str:
    if not rows:
        raise InputError.of("calibrate", "", "no row that can be compared", FORMATS)
    places = {(row.cluster, row.hosts, row.per_host, row.ranks): row for row in rows}
    reasons = [
        Mistake(row.where, "cluster", reason, "a cluster that fits")
        for row in places.values()
        if (reason := loadable(row))
    ]
    InputError.check(reasons)
    found = sorted({str(cluster_of(row).gpu_model) for row in places.values()})
    if len(found) > 1:
        raise InputError.of(
            "calibrate", "cluster", ", ".join(found), "logs of one kind of GPU"
        )
    return found[0]


def _fit(tables: dict[str, Any], block: Block, items: Sequence[Item], gpu: str) -> bool:
    """Fits a block as far as its rows reach; whether it was."""
    used = sum(not row.held_out for row, _ in items)
    if used < LEAST:
        return False
    target = tables
    for key in block:
        target = target[key]
    target.pop("evidence", None)
    several = any((row.hosts or 1) > 1 for row, _ in items)
    if several and block != ("pairs",):
        target.setdefault("net", 0.95)
    keys = [key for key in PACE if key != "net" or several]
    enough = used >= 2 * sum(key in target for key in keys)
    return fit_block(tables, block, items, gpu, keys if enough else FEW) > 0


def _grade(tables: dict[str, Any], fitted: Sequence[str]) -> None:
    """In the file of a GPU that had none, what was not fitted is another GPU's and says so."""
    for algo, by_proto in tables.items():
        for proto in PROTOS:
            if (
                isinstance(by_proto, dict)
                and isinstance(by_proto.get(proto), dict)
                and f"{algo}.{proto}" not in fitted
            ):
                by_proto[proto]["evidence"] = "guess"


def write(
    result: Calibration, path: Path, logs: Sequence[Path], force: bool = False
) -> None:
    """Write the constants as a file of a GPU (sim/costs/hardware/<gpu>-nccl.toml).

    Raises
    ------
    InputError
        If the file exists and `force` is not set, or cannot be written.
    """
    if path.exists() and not force:
        raise InputError.of(str(path), "", "a file", "a new one", "--force replaces it")
    if not result.fitted:
        why = "; ".join(result.overlap.words)
        found, expected = (
            "too few rows to fit anything",
            f"at least {2 * LEAST} sizes of a series",
        )
        raise InputError.of(str(path), "", found, expected, why)
    files.write_text(path, render(result, logs))


def render(result: Calibration, logs: Sequence[Path]) -> str:
    """The file: what it rests on in its head, then every table."""
    lines = [*_head(result, logs)]
    for name, table in result.tables.items():
        for title, part in _parts(name, table).items():
            lines += ["", f"[{title}]"]
            lines += [f"{key} = {literal(value)}" for key, value in part.items()]
    return "\n".join(lines) + "\n"


def _head(result: Calibration, logs: Sequence[Path]) -> Iterator[str]:
    """What the constants rest on."""
    names = ", ".join(path.name for path in logs)
    yield f"# NCCL on {result.gpu}: how long its algorithms take. Written by `prestep calibrate` from {names}."
    yield "# Seconds, bytes, bytes/s; the meaning of every name: docs/collectives.md and sim/collectives/constants.py."
    yield f"# Mean |error| of collectives: fitted {result.figure('fitted')}, held out {result.figure('held out')}."
    if OVERLAP in result.tables:
        kinds = ("fitted", "held out")
        figures = (f"{kind} {result.figure(kind, overlap=True)}" for kind in kinds)
        yield f"# Kernels and collectives beside each other, mean |error|: {', '.join(figures)}."
    yield f"# Fitted: {', '.join(result.fitted)}. Everything else is as it was before."


def _parts(name: str, table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A table as the file has it: an algorithm's by protocol, others as they are."""
    protocols = [key for key in table if key in PROTOS]
    return {f"{name}.{key}": table[key] for key in protocols} or {name: table}
