"""What CUDA composes of operators, and which attention it takes: the recorder's rules, with PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from prestep.workloads.capture.record import attention, composites  # noqa: E402


def test_masks_whose_keys_lie_apart_fit_no_fused_kernel() -> None:
    """T5's table of places is (queries, keys, heads) in memory: it is added to masks as it lies."""
    query = torch.empty(2, 12, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.zeros(1, 12, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    apart = torch.zeros(64, 64, 12, dtype=torch.bfloat16).permute(2, 0, 1)[None]
    lying = attention.Call(query, query, query, rows)
    assert attention._fits_efficient(lying)
    assert not attention._fits_efficient(attention.Call(query, query, query, apart))


def test_group_norms_return_pictures_in_the_usual_order() -> None:
    picture = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(8), torch.randn(8)
    normalized = composites.group_norm(picture, 4, weight, bias)
    assert normalized.is_contiguous()
    expected = torch.nn.functional.group_norm(picture, 4, weight, bias)
    torch.testing.assert_close(normalized, expected)
