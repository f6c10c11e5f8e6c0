"""Packages that only some commands need: each says so when it is missing, and how to get it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lab import CASES
from prestep.sim.extras import COME_WITH, EXTRAS, lazily, missing

ROOT = Path(__file__).parents[2]
LOG = CASES / "h200" / "collectives_2gpu.jsonl"
# Run in a process of its own, in which a package cannot be imported.
HIDDEN = "import sys; sys.modules[sys.argv.pop(1)] = None; from prestep import cli; cli.main()"
COMMANDS = {
    "matplotlib": [
        ["plot", "out", "--x", "parallel.dp", "--y", "mfu"],
    ],
    "scipy": [
        ["calibrate", str(LOG), "-o", "mine.toml"],
        ["calibrate", str(LOG), "-o", "mine.toml", "--network"],
        ["calibrate", "measured.zip", "-o", "mine.toml"],
    ],
    "torch": [["capture", "-o", "x.capture", "--", str(ROOT / "cli.py")]],
    "mcp": [["mcp"]],
    "optuna": [["search", "llama1b-ddp4", "--trials", "4"]],
    "distributed": [
        [
            "sweep",
            "llama1b-ddp4",
            "--grid",
            "training.micro_batch=1,2",
            "--executor",
            "dask://file",
            "-o",
            "out",
        ],
    ],
}


def extras() -> dict[str, list[str]]:
    """Packages by extra, as pyproject.toml has them, without those of the project's own work."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = {
        extra: [re.split("[<>=]", line)[0] for line in lines]
        for extra, lines in table.items()
    }
    return {
        extra: packages
        for extra, packages in names.items()
        if extra not in ("dev", "docs")
    }


def test_every_extra_is_in_the_table() -> None:
    """What pyproject.toml calls an extra is what the message tells people to install."""
    for extra, packages in extras().items():
        for package in packages:
            assert EXTRAS[package].install.startswith(f"pip install 'prestep[{extra}]'")
            assert package in COMMANDS


@pytest.mark.parametrize(
    ("package", "arguments"),
    [(package, line) for package, lines in COMMANDS.items() for line in lines],
)
def test_a_command_without_its_package_says_what_to_install(
    package: str, arguments: list[str], tmp_path: Path
) -> None:
    """Exit code 2, the command that installs it, and no traceback."""
    (tmp_path / "file").write_text("{}")
    (tmp_path / "measured.zip").write_bytes(b"PK")
    command = [sys.executable, "-c", HIDDEN, package, *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert EXTRAS[package].install in done.stderr
    assert "Traceback" not in done.stderr and "mistake of its own" not in done.stderr


def test_other_imports_that_fail_are_mistakes_of_prestep() -> None:
    """A module of prestep's own that is gone is no package to install."""
    assert missing(ModuleNotFoundError("no", name="prestep.sim.nothing")) is None


@pytest.mark.parametrize("name", COME_WITH)
def test_what_comes_with_an_extra_is_missing_with_it(name: str) -> None:
    """The first import that fails may be of a package that the optional one brings along."""
    told = missing(ModuleNotFoundError(name=name))
    assert told is not None and told.package in EXTRAS
    assert told.package == COME_WITH[name]


def test_a_lazy_import_waits_for_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the block nothing is imported; what is used is the module itself, and one that is missing says so then."""
    (tmp_path / "lazy_for_test").mkdir()
    (tmp_path / "lazy_for_test" / "written.py").write_text("number = str\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "lazy_for_test.written"
    with lazily():
        from lazy_for_test import (  # type: ignore[import-not-found]
            waits,
            written,
        )
    assert name not in sys.modules
    assert written.number(12) == "12" and sys.modules[name].number is str
    with pytest.raises(ModuleNotFoundError, match=r"lazy_for_test\.waits"):
        waits.anything  # noqa: B018 - a use
