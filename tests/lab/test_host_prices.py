"""Prices of what a host does, from steps that nothing else bounds."""

from __future__ import annotations

import pytest

from lab.fit.host_prices import CHAINS, Step, fit, rewrite

TRUE = {"launch": 5e-6, "python_call": 1.3e-6, "aten_elementwise": 4.5e-6}
COUNTS = [(300, 500, 120), (300, 5000, 110), (40, 2000, 30), (900, 900, 850)]


def steps(factor: float, own: bool) -> list[Step]:
    return [
        Step(
            str(at),
            factor * sum(t * n for t, n in zip(TRUE.values(), counts, strict=True)),
            dict(zip(TRUE, map(float, counts), strict=True)),
            own,
        )
        for at, counts in enumerate(COUNTS)
    ]


def test_prices_and_the_factor_of_another_machine_come_back() -> None:
    """Steps of tiny models have factor 1; programs were measured on a host that takes 1.4 times as long."""
    prices, factor = fit([*steps(1.0, False), *steps(1.4, True)], dict(TRUE))
    assert factor == pytest.approx(1.4, rel=0.03)
    for name, seconds in TRUE.items():
        assert prices[name] == pytest.approx(seconds, rel=0.15)
    assert all(abs(step.off(prices)) < 0.02 for step in steps(1.0, False))


def test_a_file_gets_new_prices_and_keeps_what_was_counted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A name in [counted] is no price."""
    path = tmp_path / "a.toml"
    path.write_text("[host_us]\nlaunch = 4.5  # why\n[counted]\nlaunch = 1\n")
    prices = {name: micros * 1e-6 for name, micros in CHAINS.items()} | {"launch": 6e-6}
    rewrite(path, prices)
    assert path.read_text() == "[host_us]\nlaunch = 6  # why\n[counted]\nlaunch = 1\n"
