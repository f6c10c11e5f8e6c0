"""Slopes of a least-squares fit whose residuals take long: Broyden's way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Slopes:
    """Slopes of residuals: taken at the first point, from there on corrected by what each step changed.

    Parameters
    ----------
    residuals, slopes
        At a point.
    """

    def __init__(
        self,
        residuals: Callable[[tuple[float, ...]], np.ndarray],
        slopes: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._residuals, self._slopes = residuals, slopes
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        here = self._residuals(tuple(x))
        if self._last is None:
            slopes = self._slopes(x)
        else:
            before, there, slopes = self._last
            step = x - before
            length = float(step @ step)
            missed = here - there - slopes @ step
            slopes = slopes + (np.outer(missed, step) / length if length > 0 else 0.0)
        self._last = x.copy(), here, slopes
        return slopes
