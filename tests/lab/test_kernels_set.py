"""Packaged tables of kernels as libraries run them, and the set that judges them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import CASES
from lab.fit import library_errors
from lab.fit.libraries import newest, split
from lab.formats import library_families, library_rows
from lab.formats.library_families import ATTENTION, EXCHANGES, EXPERTS, FAMILIES
from lab.formats.packaged import libraries, library_table
from lab.sets.kernels import validate_set
from prestep.sim.costs import load_gpu
from prestep.sim.costs.library_families import PRODUCTS, SCANS, Family
from prestep.sim.costs.library_table import LibraryTable
from prestep.sim.errors import InputError

ROOFLINE = load_gpu("h100").roofline
SHAPES = np.array(
    [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096) for k in (1024, 8192)]
)
EXAMPLES = {
    PRODUCTS: (4096, 4096, 1024),
    ATTENTION: (2, 4096, 32, 8, 128, 1024),
    EXPERTS: (4096, 4096, 1536, 8, 128, 2, 4),
    SCANS: (2, 4096, 8, 128, 64, 64, 256),
    EXCHANGES: (8, 4096, 7168, 8, 256, 20),
}


def table_of(factor: float) -> LibraryTable:
    """Rows that take so many times their base."""
    unit = LibraryTable(PRODUCTS, SHAPES, np.ones(len(SHAPES)), ROOFLINE, "bf16")
    return LibraryTable(PRODUCTS, SHAPES, factor * unit.base(SHAPES), ROOFLINE, "bf16")


#: A row and octaves from it: less than three in all, eight times its sizes, beyond which limits take over.
NEAR = st.tuples(
    st.sampled_from(SHAPES.tolist()), st.tuples(*[st.floats(-1.7, 1.7)] * 3)
)
FAR = st.tuples(*[st.integers(1, 2**20)] * 3)


@given(NEAR, st.floats(0.5, 4.0))
@settings(max_examples=30, deadline=None)
def test_rows_that_all_take_a_factor_of_their_base_make_everything_take_it(
    near: tuple[list[int], tuple[float, ...]], factor: float
) -> None:
    """Between the rows, and up to eight times beyond them."""
    row, octaves = near
    sizes = np.round(np.array([row]) * 2.0 ** np.array([octaves])).astype(int)
    table = table_of(factor)
    assert table.seconds(sizes) == pytest.approx(factor * table.base(sizes), rel=1e-6)


@given(FAR, st.floats(0.5, 4.0))
@settings(max_examples=60, deadline=None)
def test_far_beyond_the_rows_the_limits_take_over(
    shape: tuple[int, int, int], factor: float
) -> None:
    """What rows say of their base counts less and less there, and never the other way."""
    table, sizes = table_of(factor), np.array([shape])
    ratio = float(table.seconds(sizes)[0] / table.base(sizes)[0])
    assert min(factor, 1.0) - 1e-6 <= ratio <= max(factor, 1.0) + 1e-6


def test_a_row_is_read_back_within_its_noise() -> None:
    """What was measured is what a table says at that shape, in every family."""
    for family in FAMILIES:
        library, rows = max(libraries(family).items(), key=lambda item: len(item[1]))
        some = rows.drop_duplicates([*family.sizes], keep=False).iloc[::100]
        table = library_table(family, library, load_gpu(library.gpu).roofline)
        read = table.seconds(some[list(family.sizes)].to_numpy())
        error = np.abs(read / (some["us"].to_numpy() * 1e-6) - 1)
        assert np.median(error) < 0.04


@given(st.integers(0, len(FAMILIES) - 1), st.integers(0, 5), st.floats(1.0, 4.0))
@settings(max_examples=40, deadline=None)
def test_a_kernel_of_larger_sizes_has_no_less_to_do(
    which: int, column: int, factor: float
) -> None:
    """Operations or bytes grow with every size, but for the GPUs that share experts, SMs that copy, and a window of tokens."""
    family, sizes = FAMILIES[which], np.array([EXAMPLES[FAMILIES[which]]], dtype=float)
    at = column % len(family.sizes)
    if family.sizes[at] in ("tensor", "groups", "window", "sms"):
        return
    larger = sizes.copy()
    larger[0, at] *= factor
    for less, more in zip(
        family.work(sizes, "bf16"), family.work(larger, "bf16"), strict=True
    ):
        assert more[0] >= less[0] >= 0
    assert max(work[0] for work in family.work(sizes, "bf16")) > 0


def test_no_table_has_a_shape_that_is_held_out() -> None:
    """And the set has no other shapes."""
    for family in FAMILIES:
        for folder, out in (
            (library_families.folder_of(family), False),
            (CASES / "kernels", True),
        ):
            rows = pd.read_parquet(folder / f"{family.name}.parquet")
            shapes = rows[list(family.sizes)].drop_duplicates()
            sample = shapes.iloc[:: max(1, len(shapes) // 1000)].to_numpy()
            assert all(library_rows.held_out(shape) == out for shape in sample)


def test_an_exchange_is_judged_in_the_columns_that_it_was_published_in(
    tmp_path: Path,
) -> None:
    """A row of DeepEP is a dispatch and a combine, each with its SMs; what ranks wait for each other is left out."""
    row = {
        "system": "h100_sxm",
        "framework": "sglang",
        "version": "0.5.12",
        "node_num": 1,
        "hidden_size": 7168,
        "num_token": range(1030, 1070),
        "num_topk": 8,
        "num_experts": 256,
        "dispatch_sms": 20,
        "dispatch_transmit_us": 200.0,
        "dispatch_notify_us": 1e6,
        "combine_sms": 24,
        "combine_transmit_us": 300.0,
        "combine_notify_us": 1e6,
    }
    pd.DataFrame({**row, "kernel_source": "deepep"}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    family, rows = library_rows.read(tmp_path / "rows.csv")
    assert family is EXCHANGES and len(rows) == 80
    assert set(zip(rows["variant"], rows["sms"], rows["us"].round(), strict=True)) == {
        ("dispatch 1 nodes", 20, 200.0),
        ("combine 1 nodes", 24, 300.0),
    }
    report = validate_set("kernels", tmp_path / "rows.csv")
    assert sum(len(part.shapes) for part in report.parts) == 80


@pytest.mark.parametrize("way", ["dispatch", "combine"])
def test_more_sms_and_fewer_tokens_are_not_slower(way: str) -> None:
    """DeepEP's rate grows with SMs until NVLink is full: the time never grows by more than the rows' own noise."""
    tables = {
        library: library_table(EXCHANGES, library, load_gpu(library.gpu).roofline)
        for library in libraries(EXCHANGES)
        if library.variant == f"{way} 1 nodes" and library.kernel == "deepep"
    }
    assert len(tables) == 6
    for table in tables.values():
        sms = np.array([(8, 4096, 7168, 8, 256, n) for n in (4, 8, 12, 16, 20, 24)])
        tokens = np.array([(8, n, 7168, 8, 256, 20) for n in (64, 512, 4096, 16384)])
        by_sms, by_tokens = table.seconds(sms), table.seconds(tokens)
        assert (by_sms[1:] < 1.05 * by_sms[:-1]).all() and by_sms[-1] < 0.5 * by_sms[0]
        assert (np.diff(by_tokens) > 0).all()


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
    family, read = library_rows.read(tmp_path / "rows.parquet")
    latest = newest(read)
    assert set(latest["source"]) == {"vllm/0.24.0", "trtllm/1.0.0"}
    known, held = split(family, latest)
    assert len(known) + len(held) == len(latest) and len(held)


@pytest.mark.parametrize(
    ("family", "columns"),
    [(each.family, each.named) for each in library_rows.FORMATS],
    ids=[f"{each.family.name}-{len(each.named)}" for each in library_rows.FORMATS],
)
def test_a_file_is_recognised_by_its_columns(
    family: Family, columns: list[str], tmp_path: Path
) -> None:
    """Whatever else it has, as Parquet and as compressed CSV; versions may lie in three ways."""
    cells = {
        "system": "h100_sxm",
        "framework": "TRTLLM",
        "version": "1.2",
        "power": 1.0,
    }
    rows = pd.DataFrame([{**dict.fromkeys(columns, 64), **cells}])
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.to_csv(tmp_path / "rows.csv.gz")
    for name in ("rows.parquet", "rows.csv.gz"):
        recognised, read = library_rows.read(tmp_path / name)
        assert recognised is family and family.sizes[0] in read
        assert read["source"].tolist() == ["trtllm/1.2"]


def test_the_page_of_gpus_has_the_errors_of_the_set() -> None:
    """Errors that the page states are those of the packaged tables, judged anew at shapes that they lack."""
    with library_errors.PATH.open(newline="", encoding="utf-8") as file:
        _, *stated = csv.reader(file)
    found = library_errors.rows(validate_set("kernels").parts)
    assert [row[:4] for row in stated] == [[*row[:4]] for row in found]
    for one, other in zip(stated, found, strict=True):
        errors = [float(value) for value in other[4:]]
        assert [float(value) for value in one[4:]] == pytest.approx(errors, abs=2e-4)
