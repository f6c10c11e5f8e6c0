"""How much longer several GPUs take that wait for each other."""

from __future__ import annotations

from statistics import NormalDist


def slowest_of(gpus: int, spread: float) -> float:
    """Expected time of the slowest of several GPUs that wait for each other, relative to the average one.

    GPUs of one model differ by ``spread`` (relative standard deviation, taken as normal); the expected maximum is
    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if gpus <= 1:
        return 1.0
    return 1.0 + spread * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))
