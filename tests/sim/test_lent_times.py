"""Lent times of kernels are fitted where enough measured steps bear them out, and a guess everywhere else."""

from __future__ import annotations

import pytest

from lab.fit.step_errors import text
from prestep.sim.costs import gpu_files, load_gpu
from prestep.sim.costs.gpu import Gpu, parts
from prestep.sim.costs.gpu_files import (
    LEAST,
    STEP_ERRORS,
    Errors,
    borne_out,
    errors_of_steps,
)
from prestep.sim.costs.spreads import widths
from prestep.sim.graph.kernel import Kernel, named

PRODUCT = Kernel("aten mm", (8192, 4096, 4096), "bf16", "nt")
EXPERTS = Kernel("aten _grouped_mm", (16, 65536, 2048, 4096), "bf16", "nt")
LIMIT = widths()["lent"]["fitted"]


def test_the_file_is_that_of_the_index() -> None:
    """Errors are those of the measured steps that this tree lists."""
    assert STEP_ERRORS.read_text(encoding="utf-8") == text()


@pytest.mark.parametrize(
    ("errors", "good"),
    [
        (Errors(LEAST, LIMIT), True),
        (Errors(LEAST - 1, 0.0), False),
        (Errors(1000, LIMIT + 1e-6), False),
    ],
)
def test_few_steps_or_far_off_ones_leave_a_guess(
    monkeypatch: pytest.MonkeyPatch, errors: Errors, good: bool
) -> None:
    """The number of steps and their error decide, and nothing else."""
    known = load_gpu("gh200")  # before, since it is kept
    table = {("gh200", "transformer", "bf16"): errors}
    monkeypatch.setattr(gpu_files, "errors_of_steps", lambda: table)
    gpu = Gpu("gh200", *parts("gh200"))
    assert gpu.evidence(PRODUCT) == ("fitted" if good else "guess")
    assert gpu.evidence(EXPERTS) == "guess"
    assert not borne_out("h100")
    assert gpu.duration(PRODUCT) == known.duration(PRODUCT)


def test_steps_judge_the_kernels_that_decide_them() -> None:
    """Steps of dense models say nothing of experts, those in 16 bits nothing of 8, and none of them of small kernels."""
    steps = errors_of_steps()
    for gpu in ("h100", "gh200", "a100-40gb"):
        for kernel, model in ((PRODUCT, "transformer"), (EXPERTS, "experts")):
            found = steps.get((gpu, model, "bf16"), Errors(0, 1.0))
            good = found.steps >= LEAST and found.error <= LIMIT
            assert ((kernel.kind, "bf16") in borne_out(gpu)) is good
    assert {kind for kind, _ in borne_out("h100")} <= {*gpu_files.MODELS}


def test_a_gpu_with_other_facts_was_not_judged() -> None:
    """Whoever changes what the GPU is has no steps of it."""
    same = Gpu("h100", *parts("h100"))  # without its own rows of operations
    other = Gpu("h100", *parts("h100", over={"bandwidth": 3.0e12}))
    attention = named("attention_fwd", (1, 32, 8, 4096, 128))
    assert same.evidence(attention) == "fitted"
    assert other.evidence(attention) == "guess"
