"""Families of kernels that others measured: which sizes a row has, what it must do, and along which axes times change.

Axes are in octaves, longer ones where times change faster: their factors were chosen on packaged rows, one set for all
GPUs, formats and libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from prestep.sim.costs.kinds import DTYPE_BYTES

TILE = 64  # rows: the smallest tiles of products
Sizes = np.ndarray  # a kernel a row, a size a column
# Floating-point operations and bytes, of every row.
Work = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes
    ----------
    name
        Of its file, and of its kernels in messages.
    sizes
        Names of a row's sizes.
    work
        Operations and bytes of rows in a number format, every operand once.
    axes
        Where rows lie.
    floor
        The shortest call, s, where corrections start (a guess).
    """

    name: str
    sizes: tuple[str, ...]
    work: Callable[[Sizes, str], Work]
    axes: Callable[[Sizes], np.ndarray]
    floor: float


def _product_work(sizes: Sizes, dtype: str) -> Work:
    m, n, k = sizes.T
    each = DTYPE_BYTES[dtype]
    return 2.0 * m * n * k, each * (m * k + k * n) + max(2.0, each) * m * n


def _product_axes(sizes: Sizes) -> np.ndarray:
    """A row more than tiles hold starts another row of tiles: such products lie apart from those that fill theirs."""
    begun = sizes[:, :1] % TILE != 0
    return np.hstack([np.log2(sizes), 0.5 * begun])


def _scan_work(sizes: Sizes, dtype: str) -> Work:
    """A scan by chunks: products inside a chunk and with the state, which is read and written in fp32."""
    batch, seq, keys, key_dim, values, value_dim, chunk = sizes.T
    tokens = batch * seq
    inside, states = chunk * (key_dim + value_dim), key_dim * value_dim
    vectors = 2.0 * tokens * (keys * key_dim + values * value_dim)
    size = DTYPE_BYTES[dtype] * vectors + 8.0 * batch * values * states
    return tokens * values * (2.0 * inside + 4.0 * states), size


def _scan_axes(sizes: Sizes) -> np.ndarray:
    batch, seq, keys, key_dim, values, _, chunk = np.log2(sizes).T
    return np.column_stack(
        [0.5 * batch, 0.7 * seq, 0.3 * keys, key_dim, 0.7 * values, 2.0 * chunk]
    )


PRODUCTS = Family("products", ("m", "n", "k"), _product_work, _product_axes, 2e-6)
#: State-space and linear-attention kernels: Mamba-2 (keys: its groups), gated delta rule, Kimi delta attention.
SCANS = Family(
    "scans",
    ("batch", "seq", "keys", "key_dim", "values", "value_dim", "chunk"),
    _scan_work,
    _scan_axes,
    3e-6,
)
