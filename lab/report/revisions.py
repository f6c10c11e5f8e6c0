"""What an older version predicts: a file that `prestep validate --json` wrote, or a revision of the repository.

A revision is unpacked into a temporary folder and asked there, in a process of its own with this environment's
libraries; nothing is kept.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import prestep
from prestep.sim.errors import InputError, PrestepError
from prestep.validation.report import baseline
from prestep.validation.report.baseline import Reports

HOME = prestep.HOME
EXPECTED = f"{baseline.EXPECTED}, or a git revision"


def load(source: str, sets: Sequence[str], rows: Path | None, jobs: int) -> Reports:
    """Reports of the base: of the file `source` if there is one, else of that revision.

    Raises
    ------
    InputError
        If it is neither.
    """
    if Path(source).is_file():
        return baseline.read(Path(source))
    if Path(source).suffix == ".json":
        raise InputError.of(source, "", "no such file", EXPECTED)
    return of_revision(source, sets, rows, jobs)


def check(source: str) -> None:
    """Raises InputError if `load` would."""
    if Path(source).is_file():
        baseline.read(Path(source))
    elif Path(source).suffix == ".json":
        raise InputError.of(source, "", "no such file", EXPECTED)
    else:
        _commit(source)


def _commit(revision: str) -> str:
    asked = (
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
    )
    return _git(*asked, source=revision).decode().strip()


def of_revision(
    revision: str, sets: Sequence[str], rows: Path | None, jobs: int
) -> Reports:
    """Reports of the sets as that revision predicts them; sets that it does not have are left out.

    Raises
    ------
    InputError
        If there is no such revision.
    PrestepError
        If it cannot be asked.
    """
    archive = _git("archive", "--format=tar", _commit(revision), source=revision)
    with tempfile.TemporaryDirectory(prefix="prestep-base-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        if (together := ask(folder, sets, rows, jobs)) is not None:
            return together
        # One set that the revision does not have makes it refuse them all.
        apart = [ask(folder, [name], rows, jobs) for name in sets]
    reports = [report for reports in apart if reports for report in reports]
    if not reports:
        raise PrestepError(f"--base: {revision} can predict none of {', '.join(sets)}")
    return reports


def ask(
    folder: str, sets: Sequence[str], rows: Path | None, jobs: int
) -> Reports | None:
    """Reports of the sets as the package in a folder predicts them; None if it cannot."""
    more = ["--rows", str(rows.resolve())] if rows else []
    asked = [
        sys.executable,
        "-m",
        "cli",
        "validate",
        *sets,
        "--json",
        "--jobs",
        str(jobs),
        *more,
    ]
    env = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run(asked, cwd=folder, env=env, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        return None
    try:
        return baseline.checked(json.loads(done.stdout), "the base")
    except (ValueError, InputError):
        return None


def _git(*words: str, source: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(HOME), *words], capture_output=True, check=False
        )
    except OSError as error:
        raise InputError.of(
            "--base", "", f"no git ({error.strerror})", EXPECTED
        ) from None
    if done.returncode:
        found = f'"{source}", no file and no revision of {HOME}'
        raise InputError.of("--base", "", found, EXPECTED)
    return done.stdout
