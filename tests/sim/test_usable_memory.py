"""Memory that a GPU's driver leaves to programs, and verdicts that rest on recomputation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.gpu_files import facts_of
from prestep.workloads.capture.recorder import device

GIB = 2.0**30
#: What PyTorch prints as a GPU's total capacity in public reports, GiB, and what its datasheet says.
PRINTED = {
    "h100": (79.0, 79.4, 80),
    "gh200": (94.9, 95.0, 96),
    "h100-500w": (94.9, 95.0, 96),
    "b200": (178.3, 178.4, 180),
    "a100": (79.1, 79.3, 80),
    "a100-40gb": (39.3, 39.6, 40),
    "mi300x": (191.6, 192.0, 192),
}


@pytest.mark.parametrize("gpu", PRINTED)
def test_usable_memory_is_what_programs_print(gpu: str) -> None:
    low, high, nominal = PRINTED[gpu]
    facts: GpuFacts = facts_of(gpu)
    assert low * GIB <= facts.room <= high * GIB
    assert facts.memory == nominal * GIB
    assert device(gpu).memory == int(facts.room)


def run(*changes: str) -> dict[str, Any]:
    sets = [part for change in changes for part in ("--set", change)]
    done = CliRunner().invoke(cli.main, ["run", "llama8b-fsdp4", "--json", *sets])
    assert done.exit_code == 0, done.output
    verdict: dict[str, Any] = json.loads(done.stdout)["out_of_memory"]
    return verdict


def test_both_figures_are_in_json() -> None:
    """The verdict is by what is usable."""
    verdict = run()
    assert verdict["capacity"] == facts_of("h200").room < verdict["nominal"]
    assert verdict["recomputed"] is None


def test_a_verdict_says_that_recomputation_decides_it() -> None:
    """What a step would need with it is what the same step needs that has it."""
    large = (
        "training.micro_batch=8",
        "training.global_batch=32",
        "training.seq_len=8192",
    )
    verdict = run(*large)
    assert not verdict["fits"]
    again = verdict["recomputed"]
    other = run(*large, f"training.recompute={again['way']}")
    assert again["fits"] is other["fits"] is True
    assert again["needed"] == pytest.approx(other["needed"], rel=1e-9)
    assert other["recomputed"] is None


def test_a_step_that_recomputes_already_has_no_other_answer() -> None:
    verdict = run(
        "training.micro_batch=128",
        "training.global_batch=512",
        "training.seq_len=8192",
        "training.recompute=full",
    )
    assert not verdict["fits"] and verdict["recomputed"] is None
