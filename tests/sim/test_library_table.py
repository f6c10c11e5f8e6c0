"""Times read from a library's table do not depend on the machine that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.sim.costs.library_table import NEAREST, nearest


def _grid() -> np.ndarray:
    """Sizes of a sweep over three axes, in octaves: most points of it have many rows equally near."""
    axis = np.arange(0.0, 8.0, 0.5)
    return np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)


def _points(count: int) -> np.ndarray:
    """Points of the grid, points halfway between two of its rows, and others."""
    rng = np.random.default_rng(7)
    rows = _grid()[rng.integers(0, len(_grid()), count)]
    apart = rng.choice([0.0, 0.25, 0.1], size=(count, 1))
    return rows + apart


def test_of_rows_equally_far_the_first_are_taken() -> None:
    """As by a stable sort of exact distances."""
    points, rows = _points(50), _grid()
    near, _ = nearest(points, rows)
    for found, point in zip(near, points, strict=True):
        exact = np.sqrt(((rows - point) ** 2).sum(axis=1)).round(6)
        first = np.argsort(exact, kind="stable")[:NEAREST]
        assert found.tolist() == sorted(first.tolist())


@pytest.mark.parametrize("others", [1, 7, 300])
def test_a_point_has_the_same_rows_whatever_is_asked_beside_it(others: int) -> None:
    """A product of matrices rounds by the size of the matrices."""
    points, rows = _points(20), _grid()
    alone = np.concatenate([nearest(point[None], rows)[0] for point in points])
    together, _ = nearest(np.concatenate([points, _points(others)]), rows)
    assert (together[: len(points)] == alone).all()
