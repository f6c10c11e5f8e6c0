"""The base of a comparison: reports in a file that `prestep validate --json` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake

EXPECTED = "the JSON of `prestep validate --json`"
Reports = list[Mapping[str, Any]]


def read(path: Path) -> Reports:
    """Reports in a file: one object, or a list.

    Raises
    ------
    InputError
        If it holds anything else.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError.of(str(path), "", str(error), EXPECTED) from None
    return checked(report, str(path))


def checked(value: Any, where: str) -> Reports:
    """Returns reports, of which JSON holds one or a list; raises InputError where it holds anything else."""
    reports = value if isinstance(value, list) else [value]
    mistakes = [
        Mistake(where, f"[{at}]", "no report", EXPECTED)
        for at, one in enumerate(reports)
        if not _is_report(one)
    ]
    if mistakes or not reports:
        raise InputError(mistakes or Mistake(where, "", "no report", EXPECTED))
    return reports


def _is_report(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and "set" in value
        and isinstance(value.get("cases"), list)
        and all(isinstance(case, dict) and _numbers(case) for case in value["cases"])
    )


def _numbers(case: Mapping[str, Any]) -> bool:
    return all(
        isinstance(case.get(key), int | float | None)
        for key in ("predicted", "signed_error")
    )
