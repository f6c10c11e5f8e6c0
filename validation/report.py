"""A comparison as Markdown, JSON, JUnit, and tables for the terminal; the picture is in `validation.plot`."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from sim.units import format_duration
from validation.plot import write_plot

if TYPE_CHECKING:
    from rich.table import Table

    from validation.compare import Case, Report
    from validation.gate import Check
    from validation.summary import Errors

__all__ = ["for_stdout", "markdown", "terminal", "write_json", "write_junit", "write_markdown", "write_plot"]

Cells = Sequence[str]
PREDICTED = "Rows that no constant was taken from"
FITTED = "Rows that some constant was taken from (fitted.toml)"
CASE_HEAD = ("case", "family", "measured", "predicted", "error", "memory", "")
CHECK_HEAD = ("check", "value", "limit", "", "where")
GROUP_HEAD = ("rows", "n", "mean", "worst", "bias", "worst row")


def markdown(report: Report) -> str:
    """The whole report; what decides comes first."""
    parts = [
        f"# {_verdict(report)}",
        _table(CHECK_HEAD, map(_check_cells, report.checks)),
        "## Groups",
        _table(GROUP_HEAD, _group_cells(report)),
        "## Cases",
        f"{PREDICTED}:",
        _table(CASE_HEAD, _case_cells(report, fitted=False)),
        f"{FITTED}:",
        _table(CASE_HEAD, _case_cells(report, fitted=True)),
    ]
    if report.skipped:
        parts += ["## Skipped", *(f"* {row.name} ({row.where}): {row.error}" for row in report.skipped)]
    return "\n\n".join(parts) + "\n"


def for_stdout(report: Report, on_terminal: bool) -> str:
    """Tables as wide as the terminal for a person, Markdown for a file or a pipe."""
    return terminal(report, shutil.get_terminal_size((120, 24)).columns) if on_terminal else markdown(report)


def terminal(report: Report, width: int = 120) -> str:
    """Cases, groups and checks as tables for a person; what decides comes last, where the eye is."""
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    for title, fitted in ((PREDICTED, False), (FITTED, True)):
        if cells := list(_case_cells(report, fitted)):
            console.print(_rich(title, CASE_HEAD, cells))
            console.print()
    for row in report.skipped:
        console.print(f"skipped {row.name} ({row.where}): {row.error}", markup=False)
    console.print(_rich("", GROUP_HEAD, _group_cells(report)))
    console.print()
    console.print(_rich("", CHECK_HEAD, map(_check_cells, report.checks)))
    console.print()
    console.print(_verdict(report), markup=False)
    return console.export_text()


def _verdict(report: Report) -> str:
    failed = sum(not check.passed for check in report.checks)
    found = (
        "within tolerance" if report.passed else f"OUTSIDE tolerance: {failed} of {len(report.checks)} checks failed"
    )
    skipped = f" ({len(report.skipped)} rows skipped)" if report.skipped else ""
    return f"{report.name}: {found}{skipped}"


def write_markdown(report: Report, path: Path) -> None:
    path.write_text(markdown(report), encoding="utf-8")


def write_json(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")


def write_junit(report: Report, path: Path) -> None:
    """One test case per check and per row; a row fails when it was not predicted."""
    suite = ElementTree.Element("testsuite", name=f"prestep validate {report.name}")
    for check in report.checks:
        element = ElementTree.SubElement(suite, "testcase", classname=f"{report.name}.gate", name=check.name)
        if not check.passed:
            text = f"{_amount(check, check.value)}, at most {_amount(check, check.limit)}"
            ElementTree.SubElement(element, "failure", message=text).text = check.detail
    for case in report.cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=f"{report.name}.{case.row.family}", name=case.row.name
        )
        if case.prediction.error:
            ElementTree.SubElement(element, "failure", message="not predicted").text = case.prediction.error
    for row in report.skipped:
        element = ElementTree.SubElement(suite, "testcase", classname=f"{report.name}.skipped", name=row.name)
        ElementTree.SubElement(element, "skipped", message=row.error)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _check_cells(check: Check) -> Cells:
    verdict = "good" if check.passed else "FAILED"
    return check.name, _amount(check, check.value), _amount(check, check.limit), verdict, check.detail


def _amount(check: Check, value: float) -> str:
    return f"{value:.1%}" if check.share else f"{value:.0f}"


def _group_cells(report: Report) -> Iterator[Cells]:
    groups: dict[str, Errors] = {
        "all": report.select(),
        **report.families,
        "predicted": report.select(fitted=False),
        "fitted": report.select(fitted=True),
        "noisy": report.select(noisy=True),
        "peak memory": report.memory,
    }
    for name, e in groups.items():
        if e.n:
            yield name, str(e.n), f"{e.mape:.1%}", f"{e.worst:.1%}", f"{e.bias:+.1%}", e.worst_id


def _case_cells(report: Report, fitted: bool) -> Iterator[Cells]:
    for case in report.cases:
        if case.fitted == fitted:
            yield _one_case(case)


def _one_case(case: Case) -> Cells:
    row, worst = case.row, case.peak_memory_error
    if case.prediction.error:
        return row.name, row.family, format_duration(row.measured), "none", "", "", case.prediction.error
    return (
        row.name,
        row.family,
        format_duration(row.measured),
        format_duration(case.prediction.step_time),
        f"{case.signed_error:+.1%}",
        "" if worst is None else f"{worst:+.1%}",
        "noisy" if case.noisy else "",
    )


def _table(head: Cells, rows: Iterable[Cells]) -> str:
    lines = [[_cell(cell) for cell in line] for line in (head, *rows)]
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _rich(title: str, head: Cells, rows: Iterable[Cells]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
