"""Sets of measurements that come with another distribution, found through the entry point group `prestep.sets`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lab import CASES

ROOT = Path(__file__).parents[2]
KINDS = """
from prestep.validation.sets.kinds import TEXTS, Kind, table_of

KINDS = {"echoes": Kind(table_of(("rows",), rows=TEXTS))}
"""
ECHOES = """
from prestep.validation.sets import own
from prestep.validation.sets.sources import folders


def validate_set(name, rows=None, jobs=1):
    return own.validate_own(folders()[name] / "train.jsonl", jobs)
"""


def distribution(folder: Path) -> Path:
    """Returns a folder for the path with a distribution that has a set of steps and a set of a kind of its own."""
    cases, sets = folder / "toy_sets" / "cases", folder / "toy_sets" / "sets"
    about = folder / "toy_sets-1.dist-info"
    for each in (cases / "toy-steps", cases / "toy-echoes", sets, about):
        each.mkdir(parents=True)
    first = (CASES / "h200" / "train_4gpu.jsonl").read_text("utf-8").splitlines()[0]
    for name, kind in (("toy-steps", "own"), ("toy-echoes", "echoes")):
        (cases / name / "train.jsonl").write_text(first + "\n", "utf-8")
        text = f'title = "Steps"\nkind = "{kind}"\nrows = ["train.jsonl"]\n'
        (cases / name / "set.toml").write_text(text, "utf-8")
    for file, text in (("__init__.py", ""), ("kinds.py", KINDS), ("echoes.py", ECHOES)):
        (sets / file).write_text(text, "utf-8")
    (folder / "toy_sets" / "__init__.py").write_text("", "utf-8")
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toy-sets\nVersion: 1\n"
    )
    (about / "entry_points.txt").write_text("[prestep.sets]\ntoy = toy_sets\n")
    return folder


def prestep(folder: Path, *words: str) -> str:
    path = os.pathsep.join((str(folder), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "prestep", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_sets_of_another_distribution_are_listed_and_judged(tmp_path: Path) -> None:
    """Its rows as those of a user are, and a kind of its own by its own module: one row, the same prediction."""
    folder = distribution(tmp_path)
    names = prestep(folder, "list", "sets").split()
    assert {"toy-steps", "toy-echoes", "h200"} <= {*names}
    reports = json.loads(
        prestep(folder, "validate", "toy-steps", "toy-echoes", "--json")
    )
    steps, echoes = ([case["predicted"] for case in one["cases"]] for one in reports)
    assert len(steps) == 1 and steps == echoes and steps[0] > 0
