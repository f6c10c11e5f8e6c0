"""Packaged tables of products as libraries run them, and the set that judges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.costs import load_gpu
from sim.costs.libraries import PRODUCTS, Library, ProductTable, product_table, products
from sim.errors import InputError
from validation.fit.libraries import newest, split
from validation.formats import library_rows
from validation.sets.kernels import validate_set
from validation.sets.sets import CASES

ROOFLINE = load_gpu("h100").roofline
SHAPES = np.array(
    [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096) for k in (1024, 8192)]
)
ONE = Library("h100", "bf16", "vllm/0.24.0", "torch.nn.functional.linear")


def table_of(factor: float) -> ProductTable:
    """Rows that take so many times their base."""
    bases = ProductTable(SHAPES, np.ones(len(SHAPES)), ROOFLINE, "bf16")
    times = [factor * bases.base((int(m), int(n), int(k))) for m, n, k in SHAPES]
    return ProductTable(SHAPES, np.array(times), ROOFLINE, "bf16")


@given(
    st.tuples(*[st.integers(64, 16384)] * 3),
    st.floats(0.5, 4.0),
)
@settings(max_examples=30, deadline=None)
def test_rows_that_all_take_a_factor_of_their_base_make_everything_take_it(
    shape: tuple[int, int, int], factor: float
) -> None:
    """Between the rows and beyond them."""
    table = table_of(factor)
    assert table.seconds(shape) == pytest.approx(factor * table.base(shape), rel=1e-6)


def test_a_row_is_read_back_within_its_noise() -> None:
    """What was measured is what a table says at that shape."""
    table = product_table(ONE, ROOFLINE)
    rows = products()[ONE].iloc[::500]
    for row in rows.itertuples():
        assert table.seconds((row.m, row.n, row.k)) == pytest.approx(
            row.us * 1e-6, rel=0.1
        )


def test_no_table_has_a_shape_that_is_held_out() -> None:
    """And the set has no other shapes."""
    for path, out in (
        (PRODUCTS, False),
        (CASES / "kernels" / "products.parquet", True),
    ):
        shapes = pd.read_parquet(path)[["m", "n", "k"]].drop_duplicates()
        sample = shapes.iloc[:: max(1, len(shapes) // 2000)]
        assert all(
            library_rows.held_out(m, n, k) == out for m, n, k in sample.to_numpy()
        )


def published(**cells: object) -> pd.DataFrame:
    """Rows in the columns of aiconfigurator's samples: one shape by library."""
    row = {
        "system": "h100_sxm",
        "source": "vllm/0.24.0",
        "kernel_source": "torch.nn.functional.linear",
        "gemm_dtype": "bfloat16",
        "m": range(256, 8192, 256),
        "n": 4096,
        "k": 4096,
        "latency": 0.2,
    }
    return pd.DataFrame({**row, **cells})


def test_other_rows_are_judged_at_the_shapes_that_no_table_has(tmp_path: Path) -> None:
    """Rows of other shapes, GPUs and libraries are counted by reason, and none is lost."""
    rows = pd.concat(
        [published(), published(source="vllm/0.1"), published(system="b60")]
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    report = validate_set("kernels", tmp_path / "rows.parquet")
    judged = sum(len(part.shapes) for part in report.parts)
    assert 0 < judged < 31 and judged + sum(report.left_out.values()) == len(rows)
    assert report.left_out["of libraries without tables (older versions)"] == 31
    assert report.left_out["of GPUs without tables"] == 31


def test_a_file_without_the_columns_is_refused_by_name(tmp_path: Path) -> None:
    """Every missing column is named; a file that is no Parquet is refused too."""
    path = tmp_path / "rows.parquet"
    published().drop(columns=["latency", "m"]).to_parquet(path)
    with pytest.raises(InputError, match="latency"):
        validate_set("kernels", path)
    path.write_text("m,n,k")
    with pytest.raises(InputError, match="Parquet"):
        validate_set("kernels", path)


def test_tables_have_the_newest_version_of_every_stack(tmp_path: Path) -> None:
    """0.24.0 is newer than 0.9.0; of another stack its own newest stays."""
    rows = pd.concat(
        [published(source=s) for s in ("vllm/0.9.0", "vllm/0.24.0", "trtllm/1.0.0")]
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    latest = newest(library_rows.read(tmp_path / "rows.parquet"))
    assert set(latest["source"]) == {"vllm/0.24.0", "trtllm/1.0.0"}
    known, held = split(latest)
    assert len(known) + len(held) == len(latest) and len(held)
