"""A comparison as Markdown, JUnit, and tables for the terminal; the picture is in `prestep.validation.report.plot`."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from prestep.sim import files
from prestep.validation.report import coverage
from prestep.validation.report.gate import Check
from prestep.validation.report.interface import Cells, Report, Table

CHECK_HEAD = ("check", "value", "limit", "", "where")
GROUP_HEAD = ("rows", "n", "mean", "worst", "bias", "rank", "worst row")
LISTED = 20  # more skipped rows than this are counted by reason


def markdown(report: Report) -> str:
    """The whole report; what decides comes first."""
    parts = [
        f"# {verdict(report)}",
        _table(CHECK_HEAD, map(check_cells, report.checks)),
        "## Groups",
        _table(GROUP_HEAD, group_cells(report)),
        *filter(None, [coverage.line(report)]),
        "## Cases",
    ]
    for table in filter(lambda table: table.rows, report.case_tables):
        parts += [f"{table.title}:", _table(table.head, table.rows)]
    if report.skips:
        parts += ["## Skipped", *(f"* {line}" for line in _skip_lines(report))]
    return "\n\n".join(parts) + "\n"


def for_stdout(report: Report, on_terminal: bool) -> str:
    """Tables as wide as the terminal for a person, Markdown for a file or a pipe."""
    return (
        terminal(report, shutil.get_terminal_size((120, 24)).columns)
        if on_terminal
        else markdown(report)
    )


def terminal(report: Report, width: int = 120) -> str:
    """Cases, groups and checks as tables for a person; what decides comes last, where the eye is."""
    console = Console(width=width, record=True, file=io.StringIO())
    for table in filter(lambda table: table.rows, report.case_tables):
        console.print(_rich(table))
        console.print()
    for line in _skip_lines(report):
        console.print(f"skipped {line}", markup=False)
    console.print(_rich(Table("", GROUP_HEAD, list(group_cells(report)))))
    console.print()
    console.print(_rich(Table("", CHECK_HEAD, list(map(check_cells, report.checks)))))
    console.print()
    if covered := coverage.line(report):
        console.print(covered, markup=False, highlight=False, soft_wrap=True)
    console.print(verdict(report), markup=False)
    return console.export_text()


def verdict(report: Report) -> str:
    failed = sum(not check.passed for check in report.checks)
    outcome = f"OUTSIDE tolerance: {failed} of {len(report.checks)} checks failed"
    outcome = "within tolerance" if report.passed else outcome
    skipped = f" ({len(report.skips)} rows skipped)" if report.skips else ""
    return f"{report.name}: {outcome}{skipped}"


def _skip_lines(report: Report) -> list[str]:
    if len(report.skips) <= LISTED:
        return [f"{skip.name} ({skip.where}): {skip.reason}" for skip in report.skips]
    counted = Counter(skip.reason for skip in report.skips)
    return [f"{number} rows: {reason}" for reason, number in counted.most_common()]


def write_junit(report: Report | Iterable[Report], path: Path) -> None:
    """One test case per check and per row; a row fails when it was not predicted. Several reports: one suite each."""
    reports = list(report) if isinstance(report, Iterable) else [report]
    suites = [_suite(one) for one in reports]
    root = suites[0]
    if len(suites) != 1:
        root = ElementTree.Element("testsuites")
        root.extend(suites)
    ElementTree.indent(root)
    with files.replacing(path) as beside:
        ElementTree.ElementTree(root).write(
            beside, encoding="utf-8", xml_declaration=True
        )


def _suite(report: Report) -> ElementTree.Element:
    """A report as a suite: its checks, its rows, and the rows that were skipped."""
    name = report.name
    suite = ElementTree.Element(
        "testsuite", name=_printable(f"prestep validate {name}")
    )
    for check in report.checks:
        case = _testcase(suite, f"{name}.gate", check.name)
        if not check.passed:
            value, limit = _amount(check, check.value), _amount(check, check.limit)
            _fail(case, f"{value}, at most {limit}", check.detail)
    for point in report.points:
        case = _testcase(suite, f"{name}.{point.group}", point.name)
        if point.error:
            _fail(case, "not predicted", point.error)
    for skip in report.skips:
        case = _testcase(suite, f"{name}.skipped", skip.name)
        ElementTree.SubElement(case, "skipped", message=_printable(skip.reason))
    for key, path in (("tests", ""), ("failures", "/failure"), ("skipped", "/skipped")):
        suite.set(key, str(len(suite.findall(f"testcase{path}"))))
    return suite


def _fail(case: ElementTree.Element, message: str, detail: str) -> None:
    """Marks a test case as failed."""
    failure = ElementTree.SubElement(case, "failure", message=_printable(message))
    failure.text = _printable(detail)


def _testcase(
    suite: ElementTree.Element, classname: str, name: str
) -> ElementTree.Element:
    names = {"classname": _printable(classname), "name": _printable(name)}
    return ElementTree.SubElement(suite, "testcase", names)


def _printable(text: str) -> str:
    """Text without the signs that XML 1.0 forbids: control characters, halves of surrogate pairs."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_cells(check: Check) -> Cells:
    verdict = "good" if check.passed else "FAILED"
    return (
        check.name,
        _amount(check, check.value),
        _amount(check, check.limit),
        verdict,
        check.detail,
    )


def _amount(check: Check, value: float) -> str:
    return f"{value:.1%}" if check.share else f"{value:.0f}"


def group_cells(report: Report) -> Iterator[Cells]:
    """Errors of every group; `rank`: Spearman's correlation of predicted and measured times."""
    ranks = {
        name: coverage.rank_of(points)
        for name, points in coverage.slices_of(report).items()
    }
    for name, e in report.groups.items():
        if e.n:
            rank = ranks.get(name)
            text = "" if rank is None else f"{rank:.3f}"
            yield (
                name,
                str(e.n),
                f"{e.mape:.1%}",
                f"{e.worst:.1%}",
                f"{e.bias:+.1%}",
                text,
                e.worst_id,
            )


def markdown_table(table: Table) -> str:
    """A table under its title."""
    return f"{table.title}:\n\n{_table(table.head, table.rows)}\n"


def terminal_tables(tables: Iterable[Table], width: int) -> str:
    """Tables for a person."""
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables:
        console.print(_rich(table))
        console.print()
    return console.export_text()


def _table(head: Cells, rows: Iterable[Cells]) -> str:
    lines = [[_cell(cell) for cell in line] for line in (head, *rows)]
    widths = [
        max(3, *(len(cell) for cell in column)) for column in zip(*lines, strict=True)
    ]
    lines.insert(1, ["-" * width for width in widths])
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        for line in lines
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _rich(table: Table) -> RichTable:
    drawn = RichTable(
        title=table.title or None, title_justify="left", box=None, pad_edge=False
    )
    for name in table.head:
        drawn.add_column(name)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn
