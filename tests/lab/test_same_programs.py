"""The same model as a captured program and as a scenario. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lab")

from lab.report.same_programs import compare

pytestmark = [pytest.mark.slow, pytest.mark.lab]


@pytest.mark.parametrize("name", ["llama pp 2", "deepseek checkpointed"])
def test_a_program_and_a_scenario_of_it_agree(name: str, tmp_path: Path) -> None:
    """Steps within 1 %, kernels and peaks within 0.1 %, and equal bytes on links."""
    step, kernels, peak, apart = compare(name, tmp_path, "h200-host-4")
    assert abs(step) < 0.01
    assert abs(kernels) < 0.001
    assert abs(peak) < 0.001
    assert not apart
