"""Fits NCCL's constants to measurements of a machine: what `prestep calibrate` does.

Takes logs of nccl-tests (text or JSON) and the harness's JSON lines. Every second size of a series is held out, and
both errors are told. What the rows say nothing of stays as it was, and the file says so.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim import files, progress
from sim.collectives import constants
from sim.collectives.constants import OVERLAP
from sim.errors import InputError, Mistake
from validation.fit import overlap as fit_overlap
from validation.fit.collectives import (
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
from validation.formats import collective_reader, nccl_tests, published_collectives
from validation.formats.collective_rows import Row
from validation.formats.overlap_rows import Overlap
from validation.formats.records import text_of
from validation.sets.predict_collective import alone_of, cluster_of, loadable

LEAST = 4  # rows of a block that are not held out; fewer settle nothing
FORMATS = "logs of nccl-tests (text or JSON), JSON lines of the harness, or a CSV of published rows"


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
        errors = [
            abs(e)
            for (_, rows), values in after.items()
            if rows == kind
            for e in values
        ]
        return f"{np.mean(errors):.1%} of {len(errors)} rows" if errors else "no rows"


def read_logs(paths: Sequence[Path], cluster: str = "", op: str = "") -> list[Row]:
    """Rows of collectives in all files, each told by its content; see `read_files`."""
    return read_files(paths, cluster, op)[0]


def read_files(
    paths: Sequence[Path], cluster: str = "", op: str = ""
) -> tuple[list[Row], list[Overlap]]:
    """Rows of collectives and of overlap in all files, each told by its content.

    Raises
    ------
    InputError
        With every mistake in every file.
    """
    rows: list[Row] = []
    beside: list[Overlap] = []
    mistakes: list[Mistake] = []
    for path in paths:
        try:
            if path.suffix.lower() == ".csv":
                rows += published_collectives.to_fit(path, cluster)
            elif nccl_tests.is_log(text_of(path)):
                if not cluster:
                    raise InputError(
                        Mistake(
                            path.name,
                            "cluster",
                            "nothing",
                            "--cluster: where these tests ran",
                        )
                    )
                rows += nccl_tests.read(path, op, cluster)
            elif stranger := _stranger(text_of(path)):
                raise InputError(Mistake(path.name, "", *stranger))
            else:
                found, overlaps = collective_reader.read_lines(path, cluster)
                rows += [row for row in found if not row.skip]
                beside += [row for row in overlaps if not row.skip]
        except InputError as error:
            mistakes += [_hinted(mistake) for mistake in error.mistakes]
    if mistakes:
        raise InputError(mistakes)
    return rows, beside


def _stranger(text: str) -> tuple[str, str, str] | None:
    """What was found, what is expected and a hint, of a file that is no log at all."""
    head = text.lstrip()[:200]
    if head.startswith("{"):
        return None
    if head.startswith(("<system", "<graphs", "<?xml", "<!--")):
        return (
            "XML",
            FORMATS,
            "NCCL's topology has no times; `prestep topology import` reads it",
        )
    if not head:
        return "an empty file", FORMATS, ""
    return (
        f'"{head.splitlines()[0][:40]}..."',
        FORMATS,
        "the table needs its header: size, time, algbw",
    )


def _hinted(mistake: Mistake) -> Mistake:
    return (
        replace(mistake, hint=FORMATS)
        if mistake.expected == "one JSON object a line"
        else mistake
    )


def calibrate(rows: Sequence[Row], beside: Sequence[Overlap] = ()) -> Calibration:
    """Constants for the machine of the rows; those of overlap from `beside`, once those of collectives are fitted.

    Raises
    ------
    InputError
        If there are no rows, or they are of several kinds of GPU, or their cluster cannot be built.
    """
    gpu = _gpu_of([*rows, *map(alone_of, beside)])
    known = constants.load(gpu)
    tables = copy.deepcopy(dict(known.tables))
    blocks = items_by_block(rows)
    before = errors_of(tables, blocks, gpu)
    fitted: list[str] = []
    left: list[str] = []
    for block, items in progress.track(sorted(blocks.items()), "groups of constants"):
        name = ".".join(block)
        done = _fit(tables, block, items, gpu)
        (fitted if done else left).append(name)
    if known.evidence == "guess":
        _grade(tables, fitted)
    after = errors_of(tables, blocks, gpu)
    overlap = fit_overlap.fit(beside, constants.build(tables, gpu, "fitted"))
    if overlap.fitted:
        tables[OVERLAP] = overlap.table
    fitted += [f"{OVERLAP}.{name}" for name in overlap.fitted]
    touched = {name.partition(".")[0] for name in fitted}
    alone = touched == {
        OVERLAP
    }  # then the file says nothing of collectives by themselves
    tables = {
        name: table
        for name, table in tables.items()
        if name in touched or not (alone or _shared(name, gpu))
    }
    return Calibration(gpu, tables, tuple(fitted), tuple(left), before, after, overlap)


def _shared(name: str, gpu: str) -> bool:
    """Whether a table is every GPU's (extra-nccl.toml) and not of this GPU's own file."""
    return name not in tomllib.loads(constants.file_of(gpu).read_text(encoding="utf-8"))


def _gpu_of(rows: Sequence[Row]) -> str:
    if not rows:
        raise InputError(
            Mistake("calibrate", "", "no row that can be compared", FORMATS)
        )
    places = {(row.cluster, row.hosts, row.per_host, row.ranks): row for row in rows}
    reasons = [
        Mistake(row.where, "cluster", reason, "a cluster that fits")
        for row in places.values()
        if (reason := loadable(row))
    ]
    if reasons:
        raise InputError(reasons)
    found = sorted({str(cluster_of(row).gpu_model) for row in places.values()})
    if len(found) > 1:
        raise InputError(
            Mistake("calibrate", "cluster", ", ".join(found), "logs of one kind of GPU")
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
        for proto in ("LL", "LL128", "Simple"):
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
        raise InputError(
            Mistake(str(path), "", "a file", "a new one", "--force replaces it")
        )
    if not result.fitted:
        why = "; ".join(result.overlap.words)
        raise InputError(
            Mistake(
                str(path),
                "",
                "too few rows to fit anything",
                f"at least {2 * LEAST} sizes of a series",
                why,
            )
        )
    try:
        files.write_text(path, render(result, logs))
    except OSError as error:
        raise InputError(
            Mistake(str(path), "", error.strerror or str(error), "a place to write to")
        ) from None


def render(result: Calibration, logs: Sequence[Path]) -> str:
    """The file: what it rests on in its head, then every table."""
    names = ", ".join(path.name for path in logs)
    lines = [
        f"# NCCL on {result.gpu}: how long its algorithms take. Written by `prestep calibrate` from {names}.",
        "# Seconds, bytes, bytes/s; the meaning of every name: docs/collectives.md and sim/collectives/constants.py.",
        f"# Mean |error| of collectives: fitted {result.figure('fitted')}, held out {result.figure('held out')}.",
        f"# Fitted: {', '.join(result.fitted)}. Everything else is as it was before.",
    ]
    if OVERLAP in result.tables:
        figures = ", ".join(
            f"{kind} {result.figure(kind, overlap=True)}"
            for kind in ("fitted", "held out")
        )
        lines.insert(
            3, f"# Kernels and collectives beside each other, mean |error|: {figures}."
        )
    for name, table in result.tables.items():
        nested = {
            key: value
            for key, value in table.items()
            if key in ("LL", "LL128", "Simple")
        }
        for title, part in (
            {f"{name}.{key}": value for key, value in nested.items()} or {name: table}
        ).items():
            lines += [
                "",
                f"[{title}]",
                *(f"{key} = {literal(value)}" for key, value in part.items()),
            ]
    return "\n".join(lines) + "\n"
