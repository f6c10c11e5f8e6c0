"""`prestep doctor`: what is missing, and how to get it."""

from __future__ import annotations

from importlib import metadata

import pytest

from prestep.sim.extras import EXTRAS, Extra
from prestep.sim.tools import doctor


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_a_missing_extra_is_named_with_what_it_is_for(
    package: str, extra: Extra, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing is no harm: exit 0, the command that needs it and the line to type."""
    real = metadata.version

    def version(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = {finding.what: finding for finding in doctor.examined()}[package]
    assert found.state == "missing"
    assert found.advice == f"only for {extra.use}: {extra.install}"


def test_every_extra_of_the_package_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that this file does not know yet; the developers' are not."""
    lines = [
        "numpy>=1",
        "scipy>=1.11; extra == 'calibrate'",
        "brand-new>=3 ; extra == 'later'",
        "ruff; extra == 'dev'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    assert doctor.extras() == [*EXTRAS, "brand-new"]
    found = {finding.what: finding for finding in doctor.examined()}
    assert found["brand-new"].state == "missing"
    assert "ruff" not in found


def test_the_first_sentence_is_the_answer() -> None:
    """What is wrong comes before what commands lack; without either everything works."""
    good, missing, wrong = (
        doctor.Finding("thing", state, "") for state in ("good", "missing", "wrong")
    )
    assert "with all" in doctor.in_short([good])
    assert "1 package that" in doctor.in_short([good, missing])
    assert doctor.in_short([good, missing, wrong]) == "Not all is well here: thing."
