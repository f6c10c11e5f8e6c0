"""Linear algebra on one thread: as the command line does, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import threads

ROOT = Path(cli.__file__).parent
NAME = "OPENBLAS_NUM_THREADS"


def predicted(**environment: str) -> str:
    """What `run --json` prints in a process of its own."""
    given = {k: v for k, v in os.environ.items() if k not in threads.THREADS}
    words = [sys.executable, "-m", "prestep", "run", "moe-ep4", "--json"]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, env=given | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_adds_in_one_order() -> None:
    """Where nobody says how many threads, it is one: the same bytes on every machine, and those of a sweep's process."""
    assert predicted() == predicted(**{NAME: "1"})


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that was given is kept, and handed on to programs of others; one that was not is not handed on."""
    monkeypatch.setattr(threads, "_set_here", set())
    monkeypatch.setenv(NAME, "3")
    threads.sum_alone()
    assert os.environ[NAME] == "3" == threads.environment()[NAME]
    monkeypatch.delenv(NAME)
    CliRunner().invoke(cli.main, ["list", "gpus"])
    assert os.environ[NAME] == "1" and NAME not in threads.environment()
    assert threads.environment().keys() | {NAME} == os.environ.keys()
