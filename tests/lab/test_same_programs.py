"""The same model as a captured program and as a scenario. Needs PyTorch, and timm for vision transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lab")

from lab.report.same_programs import CASES, compare

pytestmark = [pytest.mark.slow, pytest.mark.lab]


#: A quick host's GPU, one whose steps hosts bound, one whose links are slow and whose attention is FlashAttention.
CLUSTERS = ("h200-host-4", "dgx-b300", "l40s-host")


@pytest.mark.parametrize("name", CASES)
def test_a_program_and_a_scenario_of_it_agree(name: str, tmp_path: Path) -> None:
    """Steps within 1 %, kernels within 0.5 %, peaks within 0.2 %, and equal bytes on links."""
    if name.startswith("vit") and find_spec("timm") is None:
        pytest.skip("timm is not installed")
    for cluster in CLUSTERS:  # of one recording
        step, kernels, peak, apart = compare(name, tmp_path, cluster)
        assert abs(step) < 0.01
        assert abs(kernels) < 0.005
        assert abs(peak) < 0.002
        assert not apart
