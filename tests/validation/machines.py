"""Machines that a measurement may find."""

from __future__ import annotations

from typing import Any

from prestep.validation.measure.options import Place

GPU = {
    "name": "NVIDIA H200",
    "sms": 132,
    "memory": 150 * 10**9,
    "l2": 6 * 10**7,
    "capability": [9, 0],
}


def place(count: int, **more: Any) -> Place:
    """One host with so many of these GPUs."""
    return Place((GPU,) * count, "2.11.0", "2.28.9", 0, count, 0, count, **more)
