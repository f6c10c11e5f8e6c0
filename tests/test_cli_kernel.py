"""`prestep kernel`: one kernel on one GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main


def asked(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["kernel", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b100", "b200"])
def test_fewer_bits_are_never_slower(gpu: str) -> None:
    """A large product takes no longer in fewer bits, and none of them reaches the wire's limits."""
    times = [
        asked("gemm", "8192,8192,8192", "--gpu", gpu, "--dtype", dtype)["time"]
        for dtype in ("fp64", "tf32", "bf16")
    ]
    assert times == sorted(times, reverse=True)


def test_rates_are_work_over_time() -> None:
    """Rates are flops and bytes over the time; the page for people has the same."""
    made = asked("gemm", "1024x2048x4096", "--gpu", "h100")
    assert made["flops"] == 2 * 1024 * 2048 * 4096
    assert made["flop_rate"] == pytest.approx(made["flops"] / made["time"])
    shown = CliRunner().invoke(main, ["kernel", "copy", "1048576", "--gpu", "h100"])
    assert shown.exit_code == 0 and "rests on" in shown.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gemm", "1,2"), "positive sizes"),
        (("gemm", "big"), "whole numbers"),
        (("gem", "1,2,3"), "gem"),
        (("copy", "8", "--gpu", "h10"), "did you mean"),
        (("copy", "8", "--dtype", "fp65"), "dtype"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], told: str) -> None:
    """Kinds, shapes, types and GPUs that there are not are refused."""
    result = CliRunner().invoke(main, ["kernel", *arguments])
    assert result.exit_code == 2 and told in result.output, result.output
