"""The body of `prestep validate`: what is done between parsing options and printing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.analysis.json_text import finite
from prestep.sim.errors import InputError
from prestep.sim.outputs.declarations import schemas_beside
from prestep.validation.report import baseline, coverage
from prestep.validation.report import report as writers
from prestep.validation.report.against import Comparison, against
from prestep.validation.report.gate import Check, new_misses
from prestep.validation.report.interface import Report
from prestep.validation.report.page import page
from prestep.validation.sets import own
from prestep.validation.sets.sets import validate

Talk = Callable[[str], None]


def compare(
    sets: Sequence[str],
    rows: Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
) -> list[Report]:
    """Reports of the sets, in order; or, of `rows`, what they are held to by a set's limits, else by their own.

    Raises
    ------
    InputError
        If a set is unknown, `rows` is no file or given for several sets, or there is neither.
    """
    chosen = list(dict.fromkeys(sets))
    if rows is None and not chosen:
        expected = "a set (`prestep list sets`), or --rows FILE"
        raise InputError.of("command line", "SET", "nothing to compare with", expected)
    if rows is not None:
        if len(chosen) > 1:
            found, expected = f"{len(chosen)} sets", "one set, whose limits count"
            raise InputError.of("command line", "--rows", found, expected)
        if not (chosen and rows.is_dir()):  # which some kinds of sets take
            of_set = f", or of the set {chosen[0]}" if chosen else ""
            expected = (
                f"jobs with their times (CSV), or rows of `prestep measure`{of_set}"
            )
            must_exist(rows, expected)
        if not chosen:
            return [own.validate_own(rows, jobs, cluster)]
    where = {} if cluster is None else {"cluster": cluster}
    return [validate(name, rows, jobs, **where) for name in chosen]


SCHEMA = schemas_beside(__file__)["schema"]


def as_json(reports: Sequence[Report], compared: Comparison | None = None) -> Any:
    """The object of one report; a list of several. It serves as the base of a later `--compare`."""
    made = [
        {**report.to_json(), "by_slice": coverage.by_slice(report), **_covered(report)}
        for report in reports
    ]
    if compared is not None:
        made = [{**one, "compared": compared.of(one["set"]).to_json()} for one in made]
    return finite(made[0] if len(made) == 1 else made)


def _covered(report: Report) -> dict[str, Any]:
    covered = coverage.to_json(report)
    return {"coverage": covered} if covered else {}


def as_text(reports: Sequence[Report], compared: Comparison | None = None) -> str:
    """Tables for a terminal, Markdown for a pipe; what moved comes last, or alone decides what a person sees first."""
    on_terminal = sys.stdout.isatty()
    texts = [writers.for_stdout(report, on_terminal) for report in reports]
    if compared is not None:
        width = shutil.get_terminal_size((120, 24)).columns
        tables = list(compared.tables())
        texts.append(
            writers.terminal_tables(tables, width) if on_terminal else _moved(compared)
        )
        texts += [compared.verdict] if on_terminal else []
    return "\n".join(texts)


def _moved(compared: Comparison) -> str:
    return "\n".join(
        [f"# {compared.verdict}\n", *map(writers.markdown_table, compared.tables())]
    )


def write(
    reports: Sequence[Report],
    talk: Talk,
    junit: Path | None = None,
    markdown: Path | None = None,
    html: Path | None = None,
    compared: Comparison | None = None,
) -> None:
    """Writes the files that were asked for.

    Raises
    ------
    InputError
        If a file cannot be written.
    """
    if junit is not None:
        writers.write_junit(reports[0] if len(reports) == 1 else reports, junit)
    if markdown is not None:
        text = "\n".join(map(writers.markdown, reports))
        files.write_text(
            markdown, text if compared is None else f"{_moved(compared)}\n{text}"
        )
    if html is not None:
        files.write_text(
            html, page(reports, compared.tables() if compared is not None else ())
        )
    for path in filter(None, (junit, markdown, html)):
        talk(f"wrote {path}")


def against_base(reports: Sequence[Report], base: Path) -> Comparison:
    """What moved since the base, a file of `validate --json`.

    Raises
    ------
    InputError
        If it is none.
    """
    now = [report.to_json() for report in reports]
    return against(baseline.read(base), now, str(base))


def worse(
    reports: Sequence[Report],
    known: Path | None,
    compared: Comparison | None = None,
    exact: bool = False,
) -> list[Check]:
    """Failed checks; with a table of known misses only those it does not list, or that grew."""
    checks = [check for report in reports for check in report.checks]
    checks += compared.checks if compared is not None else ()
    checks += [compared.exact] if compared is not None and exact else ()
    if known is None:
        return [check for check in checks if not check.passed]
    must_exist(known, "a TOML table of known misses")
    return new_misses(checks, known)


def must_exist(path: Path, expected: str) -> None:
    """Raises InputError if there is no such file."""
    if not path.is_file():
        raise InputError.of(str(path), "", "no such file", expected)
