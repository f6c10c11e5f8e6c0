"""Covariance of a Gaussian process with a Matern 3/2 kernel.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equation 4.17.
"""

from __future__ import annotations

import math

import numpy as np


def covariance(distance: np.ndarray, length: float, spread: float) -> np.ndarray:
    """Of values that lie `distance` apart; `length` in the same unit, `spread` their standard deviation."""
    scaled = distance * (math.sqrt(3) / length)
    alike: np.ndarray = spread**2 * (1.0 + scaled) * np.exp(-scaled)
    return alike


def between(difference: np.ndarray, length: float, spread: float) -> np.ndarray:
    """Of values by the difference of their positions, shape (..., axes)."""
    distance = np.sqrt((difference**2).sum(axis=-1))
    return covariance(distance, length, spread)
