"""Perceptrons in 32 bits, SGD, and moments in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main

CLAIMS = Path(__file__).parents[2] / "lab" / "cases" / "claims" / "scenarios"
WRITTEN = CLAIMS / "mlp-as-written.toml"


def run(*changes: str, scenario: str = str(WRITTEN)) -> Any:
    parts = [part for change in changes for part in ("--set", change)]
    result = CliRunner().invoke(main, ["run", scenario, "--json", *parts])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def memory(*changes: str) -> Any:
    return run(*changes)["peak_memory"]["0"]


def test_wide_numbers_take_twice_the_bytes() -> None:
    """In fp32 parameters and gradients are twice as large as in bf16, and products are slower without tensor cores."""
    wide, narrow = memory(), memory("training.precision=bf16")
    assert wide["parameters"] == pytest.approx(2 * narrow["parameters"], rel=0.01)
    compute = [
        run(f"training.precision={name}", "model.sizes=[4096,4096,4096]")["breakdown"][
            "compute"
        ]
        for name in ("fp32", "tf32", "bf16")
    ]
    assert compute == sorted(compute, reverse=True)


def test_sgd_keeps_nothing() -> None:
    """SGD without momentum has no state, Adam two numbers for each parameter; SGD's step is no longer."""
    plain, adam = memory(), memory("training.optimizer=adamw")
    assert plain.get("optimizer", 0) == 0
    assert adam["optimizer"] == pytest.approx(2 * adam["parameters"], rel=0.01)
    assert run()["step_time"] <= run("training.optimizer=adamw")["step_time"]


def test_wide_moments_are_ten_bytes_a_parameter() -> None:
    """bf16 parameters with two moments in fp32 are saved in ten bytes each; in bf16 alone in six."""
    named = "llama1b-ddp4"
    sizes = {
        wide: run(
            "checkpoint.mode=rank0", f"pytorch.wide_moments={wide}", scenario=named
        )["checkpoint"]["bytes"]
        for wide in ("true", "false")
    }
    assert sizes["true"] / sizes["false"] == pytest.approx(10 / 6)
