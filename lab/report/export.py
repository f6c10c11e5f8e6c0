"""Rows of training steps as one table that others can cite and compute with.

    python -m lab.report.export SET... -o FILE [--rows FILE] [--jobs N]

A row is a measured step beside its prediction: where it was measured, by whom, under which licence, with which layout,
and whether it judges. docs/data-card.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import __version__, files
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.validation import command
from prestep.validation.report.interface import Report
from prestep.validation.sets.sets import kind_of
from prestep.validation.sets.sources import module_of

#: Kinds of sets whose cases are training steps.
KINDS = ("steps", "changes", "programs", "published", "table")

OWN = {
    "source": "prestep",
    "url": "lab/cases",
    "licence": "Apache-2.0",
    "cite": "CITATION.cff",
}
#: Cells of published rows that are numbers, and those that are texts.
COUNTS = ("gpus", "nodes", "layers", "hidden", "heads", "seq_len", "global_batch")
AXES = ("micro_batch", "tp", "pp", "vpp", "cp", "ep", "dp")
TEXTS = ("hardware", "model", "zero_or_fsdp", "recompute", "precision")
#: Column -> what it holds, in the order of the table.
COLUMNS = {
    "set": "text: the set of prestep's validation",
    "row": "text: the row's name in it",
    "group": "text: the family or source by which errors are given",
    "source": "text: who measured",
    "url": "text: where it was published, or the folder of the rows",
    "licence": "text: SPDX name, or facts: figures that were cited",
    "cite": "text: what to cite beside prestep",
    **dict.fromkeys(TEXTS, "text: as the source says it"),
    **dict.fromkeys((*COUNTS, *AXES), "number: as the source says it"),
    "measured": "number, s: a step",
    "predicted": "number, s: null where it could not be predicted",
    "signed_error": "number: (predicted - measured) / measured",
    "low": "number, s: lower end of the predicted 90 % interval, where there is one",
    "high": "number, s: its upper end",
    "judged": "true, false: whether it counts: no constant of its group, complete, steady, predicted",
    "fitted": "true, false: whether constants may have been taken from its group",
    "incomplete": "true, false: whether the row was completed by assumptions, or its steps differ too much",
    "assumed": "text: what an incomplete row was completed with",
    "fit": "text: constants that were read off other rows of its source",
    "llm_analysis": "number, s: what llm-analysis 0.2.2 says as it comes",
    "llm_analysis_half": "number, s: the same at half of the peak",
    "error": "text: why there is no prediction",
}


def write(reports: Sequence[Report], path: Path, rows: Path | None = None) -> int:
    """Writes the table as Parquet, or as CSV where the name ends so; the number of rows.

    Raises
    ------
    InputError
        For a set without training steps, or another ending.
    """
    check(path, [report.name for report in reports])
    table = [row for report in reports for row in _rows(report, rows)]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        files.write_text(path, text.getvalue())
    else:
        files.write_bytes(path, _parquet(table))
    return len(table)


def check(path: Path, names: Sequence[str]) -> None:
    """Raises InputError for a table that cannot be written, before the work."""
    mistakes = [
        Mistake("command line", "SET", f"set {name}", "sets of training steps")
        for name in names
        if kind_of(name) not in KINDS
    ]
    if path.suffix not in (".parquet", ".csv"):
        expected = "a name that ends with .parquet or .csv"
        mistakes.append(Mistake("command line", "-o", str(path), expected))
    InputError.check(mistakes)


def _rows(report: Report, rows: Path | None) -> Iterator[dict[str, Any]]:
    """The cases of a set; cells without a value are None."""
    cases = {str(case.get("id")): case for case in report.to_json().get("cases", ())}
    cells = _cells(report.name, rows)
    for point in report.points:
        case = cases.get(point.name, {})
        done = math.isfinite(point.predicted) and not point.error
        low, high = point.interval or (None, None)
        found = {
            "set": report.name,
            "row": point.name,
            "group": point.group,
            **(cells[point.name] if point.name in cells else _own(case)),
            "measured": point.measured,
            "predicted": point.predicted if done else None,
            "signed_error": point.predicted / point.measured - 1 if done else None,
            "low": low,
            "high": high,
            "judged": done and not point.fitted and not point.faint,
            "fitted": point.fitted,
            "incomplete": point.faint,
            "assumed": case.get("assumed", ""),
            "fit": case.get("fit", ""),
            "error": point.error,
        }
        yield {name: found.get(name) for name in COLUMNS}


def _cells(name: str, rows: Path | None) -> Mapping[str, Mapping[str, Any]]:
    """Returns what the kind of a set knows of its rows beside their times; nothing for rows that were measured here."""
    cells_of = getattr(module_of(kind_of(name)), "cells_of", None)
    return cells_of(name, rows) if cells_of is not None else {}


def _own(case: Mapping[str, Any]) -> dict[str, Any]:
    """Who measured a row that is no published one: this project."""
    return {**OWN, "gpus": case.get("world")}


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The table with the meaning of every column beside it."""
    import pyarrow as pa  # takes longer to import than most commands run
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "number": pa.float64(), "true": pa.bool_()}
    fields = [
        pa.field(name, kinds[doc.split(":")[0].split(",")[0]], metadata={"doc": doc})
        for name, doc in COLUMNS.items()
    ]
    about = {
        "title": "Measured training steps beside their predictions",
        "prestep": __version__,
        "licence": "by row (column licence): see docs/data-card.md and NOTICE",
    }
    schema = pa.schema(fields, metadata=about)
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Writes the table; 2 for wrong input."""
    parser = argparse.ArgumentParser(prog="python -m lab.report.export")
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    parser.add_argument("--rows", type=Path, help="predict these rows of SET instead")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    options = parser.parse_args(words)
    try:
        check(options.output, options.sets)  # before the work, not after
        reports = command.compare(options.sets, options.rows, options.jobs)
        count = write(reports, options.output, options.rows)
    except PrestepError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {count:,} rows to {options.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
