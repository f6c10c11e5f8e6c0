"""Calibration keeps what the known cluster has where the machine's own steps are likelier with it, and says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.costs.corrected import BETWEEN
from prestep.validation.fit import machine_host, machine_steps

SLOW = (1.6, 1.8, 2.0)  # factors that a slow host's steps say


@dataclass(frozen=True)
class Said:
    """A step that says the host's factor, or bounds it."""

    factor: float
    host_bound: bool = True
    experts: bool = False

    @property
    def row(self) -> Any:
        return SimpleNamespace(name="moe" if self.experts else "dense")


def fitted(experts: Said, known: float) -> machine_host.Host:
    steps: Any = [*map(Said, SLOW), experts]
    host = machine_host.fit(steps, known)
    assert host is not None
    return host


@given(st.floats(1.0, 1.4))
def test_experts_that_a_slow_host_did_not_hold_up_keep_the_known_factor(
    bound: float,
) -> None:
    """A step of experts that the GPU decides, on a host that others call slow, leaves experts as they were."""
    host = fitted(Said(bound, host_bound=False, experts=True), known=1.0)
    assert host.experts is not None and host.experts.factor == 1.0
    assert host.experts.likelier >= machine_host.LIKELIER
    assert "host_factor_experts 1: it stays" in host.summary


@given(st.floats(1.6, 2.2), st.floats(0.5, 1.2))
def test_experts_that_a_slow_host_held_up_have_the_factor_of_all(
    factor: float, known: float
) -> None:
    """A step of experts that says what the others say counts with them."""
    host = fitted(Said(factor, experts=True), known)
    assert host.experts is None and "experts" not in host.summary


def test_a_bound_far_above_says_nothing_of_experts() -> None:
    """Experts that any host would have served have the factor of all steps."""
    assert fitted(Said(9.0, host_bound=False, experts=True), 1.35).experts is None


def judged(here: float, known: float, **step: Any) -> machine_steps.Judged:
    """A step of the GPU with such predictions, over a measured second."""
    said = {"host_bound": False, "tiny": False, "levels": False, "factor": 9.0} | step
    row, below = SimpleNamespace(measured=1.0), 1 + known
    one: Any = SimpleNamespace(**said, row=row, below=below)
    return machine_steps.Judged(one, 1 + here)


@given(st.floats(-0.05, 0.05), st.floats(-0.05, 0.05))
def test_kernels_stay_as_they_were_where_steps_are_likelier_with_them(
    here: float, known: float
) -> None:
    """Of two predictions the one that is nearer, in logarithms, is likelier."""
    likelier = machine_steps.better_before([judged(here, known)], BETWEEN)
    nearer = abs(math.log1p(known)) < abs(math.log1p(here))
    assert (likelier > 1) == nearer or math.isclose(likelier, 1)


@pytest.mark.parametrize(
    "step", [{"host_bound": True}, {"tiny": True}, {"levels": True}, {"factor": 1.5}]
)
def test_only_steps_of_the_gpu_that_nothing_was_fitted_to_judge_kernels(
    step: dict[str, Any],
) -> None:
    """Steps that the host decides or nearly does, and those that the level was read off, do not count."""
    assert machine_steps.better_before([judged(0.05, 0.0, **step)], BETWEEN) == 0
