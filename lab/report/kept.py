"""What moved between a base and reports that were kept: `prestep validate --compare`, without predicting them again.

    python -m lab.report.kept FOLDER --base FILE|REV [--exact] [--known-misses FILE] SET...

The folder has the report of a set in SET.json, as a run of the tests leaves it where `PRESTEP_KEEP_REPORTS` names a
folder (tests/conftest.py). Sets that it does not have are predicted. Exit 1: something got worse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.report import revisions
from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, PrestepError
from prestep.validation import command
from prestep.validation.report import baseline
from prestep.validation.report.against import against
from prestep.validation.report.interface import Report

Told = Mapping[str, Any]


def keep(folder: Path, report: Report) -> None:
    """Writes a report to the file of its set, as `prestep validate --json` prints it."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(_file(folder, report.name), json.dumps(command.as_json([report])))


def reports(folder: Path, sets: Sequence[str], jobs: int = 1) -> list[Told]:
    """The kept reports of the sets, in order; what was not kept is predicted.

    Raises
    ------
    InputError
        If a file holds anything else than the report of its set.
    """
    return [_kept(folder, name) or _predicted(name, jobs) for name in sets]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _kept(folder: Path, name: str) -> Told | None:
    path = _file(folder, name)
    if not path.is_file():
        return None
    told = baseline.read(path)
    if [one["set"] for one in told] != [name]:
        found = ", ".join(str(one["set"]) for one in told)
        raise InputError(Mistake(str(path), "set", found, f"one report, of {name}"))
    return told[0]


def _predicted(name: str, jobs: int) -> Told:
    print(f"{name}: not kept, predicted now", file=sys.stderr)
    [report] = command.compare([name], jobs=jobs)
    return report.to_json()


def main(words: Sequence[str] | None = None) -> int:
    """Prints what moved; 1 if a check fails that is no known miss, 2 for wrong input."""
    options = _options(words)
    try:
        revisions.check(options.base)  # before the work, not after
        base = revisions.load(options.base, options.sets, None, options.jobs)
        now = reports(options.folder, options.sets, options.jobs)
        compared = against(base, now, options.base)
        print(command.as_text([], compared))
        worse = command.worse([], options.known_misses, compared, options.exact)
    except PrestepError as error:
        print(error, file=sys.stderr)
        return 2
    for check in worse:
        print(f"{check.name}: {check.value:.4f} {check.detail}", file=sys.stderr)
    return 1 if worse else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.report.kept")
    parser.add_argument("folder", type=Path, help="where SET.json lie")
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("--base", required=True, help="file of --json, or a revision")
    parser.add_argument("--exact", action="store_true", help="any other number fails")
    parser.add_argument("--known-misses", type=Path, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
