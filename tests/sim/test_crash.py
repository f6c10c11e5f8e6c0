"""A mistake of prestep's own ends in words, not in a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import predict


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("by hand")


def test_a_crash_says_how_to_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3; the traceback is in the file that the message names."""
    monkeypatch.delenv("PRESTEP_DEBUG", raising=False)
    monkeypatch.setattr(predict, "plan", broken)
    made = CliRunner().invoke(cli.main, ["run", "mlp-ddp4"])
    assert (
        made.exit_code == 3
        and "report it" in made.output
        and "Traceback" not in made.output
    )
    named = re.search(r"Details are in (\S+\.txt)", made.output)
    assert named is not None
    path = Path(named[1])
    assert "ZeroDivisionError: by hand" in path.read_text(encoding="utf-8")
    path.unlink()


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PRESTEP_DEBUG the exception goes through."""
    monkeypatch.setenv("PRESTEP_DEBUG", "1")
    monkeypatch.setattr(predict, "plan", broken)
    made = CliRunner().invoke(cli.main, ["run", "mlp-ddp4"])
    assert isinstance(made.exception, ZeroDivisionError)
