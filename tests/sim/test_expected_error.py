"""The expected error of a run: of measured steps like it, fitted ones left out, nearer ones first."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.record import expected_error as study
from prestep.sim.record.expected_error import (
    LEAST,
    OCTAVES,
    Run,
    expected_error,
    judged_runs,
)
from prestep.sim.record.measured_runs import measured_runs
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools.catalog import find_scenario


def scenario(*changes: str) -> Scenario:
    return load_scenario(find_scenario("llama1b-ddp4"), changes)


def runs(n: int, error: float, **kind: object) -> list[Run]:
    like = {"gpu": "h200", "framework": "pytorch-eager", "model": "transformer"}
    return [Run(**{**like, "mode": "ddp", "gpus": 2.0, "error": error, **kind})] * n  # type: ignore[arg-type]


def test_only_steps_that_nothing_was_fitted_to_count() -> None:
    """As many as the whole index has of them, with the same errors."""
    for gpu in {known.kind.gpu for known in measured_runs()}:
        own = [
            k
            for k in measured_runs()
            if k.kind.gpu == gpu and not k.fitted and not k.note
        ]
        errors = [known.error for known in own if known.predicted > 0]
        assert [run.error for run in judged_runs(gpu)] == pytest.approx(errors)


@pytest.mark.parametrize(
    ("others", "shared"),
    [
        ({"framework": "megatron"}, ["model", "gpus", "layout"]),
        ({"gpus": 2.0 + 2 * OCTAVES}, ["framework", "model", "layout"]),
        ({"mode": "fsdp"}, ["framework", "model", "gpus"]),
    ],
)
def test_nearer_steps_count_alone_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, object], shared: list[str]
) -> None:
    """Five steps that share one more thing are preferred; four are not, and what they share is said."""
    for n, error, named in ((LEAST, 0.01, True), (LEAST - 1, None, False)):
        made = (*runs(n, 0.01), *runs(40, 0.2, **others))
        monkeypatch.setattr(study, "judged_runs", lambda gpu, made=made: made)
        found = expected_error(scenario(), "h200")
        assert found is not None
        assert (
            set(found["shared"]) == {*shared, "framework", "model", "gpus", "layout"}
        ) is named
        if error is None:
            assert set(found["shared"]) == set(shared)
            assert found["n"] == n + 40
        else:
            assert found["error"] == pytest.approx(error)


def test_a_gpu_that_nobody_measured_has_none() -> None:
    """No figure of another GPU is given for it."""
    assert expected_error(scenario(), "v100") is None


def test_run_prints_what_json_has() -> None:
    """The same error in both, and a range of GPUs in which it was found."""
    asked = ["run", "examples/oversubscribed-spine.toml"]
    found = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    error = found["expected_error"]
    assert error["n"] >= LEAST
    assert abs(error["bias"]) <= error["error"] <= abs(error["worst"])
    page = CliRunner().invoke(main, asked).stdout
    assert f"{error['error']:.1%} on {error['n']}".replace("%", " %") in page
