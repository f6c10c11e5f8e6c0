"""Published times of kernels in the columns of aiconfigurator's samples (`kernels/gemm.parquet`), as rows of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow

from lab.formats import exchange_rows
from lab.formats.library_families import ATTENTION, EXCHANGES, EXPERTS
from prestep.sim.costs.library_families import PRODUCTS, SCANS, Family
from prestep.sim.errors import InputError, Mistake

GPUS = {
    "a100_sxm": "a100",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
}
DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
EVERY_FILE = ("system", "kernel_source", "latency")
STACK = (("source",), ("file",), ("framework", "version"))  # one of these
PARTS = 5  # one of so many shapes is held out
MOST = 2**31 - 1  # of a size
CHUNK = 64  # of the delta rules' kernels, whose files do not say it


@dataclass(frozen=True)
class Format:
    """A published file: the family of its kernels, and which of its columns has which size.

    Attributes
    ----------
    columns
        Column of each size, in the family's order; of one that is not there the number itself.
    dtype
        Column of the number format; "" where all kernels are in bf16.
    variant
        What else sets libraries apart, of a file's rows.
    needed
        Further columns.
    """

    family: Family
    columns: tuple[str | int, ...]
    dtype: str
    variant: Callable[[pd.DataFrame], pd.Series]
    needed: tuple[str, ...] = ()

    @property
    def named(self) -> list[str]:
        """Columns that a file must have."""
        sizes = [name for name in self.columns if isinstance(name, str)]
        dtype = [self.dtype] if self.dtype else []
        return [*EVERY_FILE, *dtype, *self.needed, *sizes]


def _none(rows: pd.DataFrame) -> pd.Series:
    return pd.Series("", index=rows.index)


def _cache(rows: pd.DataFrame) -> pd.Series:
    """ "fp8 cache" where keys and values are kept in another format than the arithmetic's."""
    other = rows["kv_cache_dtype"] != rows["attn_dtype"]
    return pd.Series(np.where(other, "fp8 cache", ""), index=rows.index)


def _phase(rows: pd.DataFrame) -> pd.Series:
    """ "gdn context": kernels of different models and phases have the same names."""
    return rows["op_name"].astype(str) + " " + rows["phase"].astype(str)


_HEADS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
FORMATS = (
    Format(PRODUCTS, ("m", "n", "k"), "gemm_dtype", _none),
    Format(
        ATTENTION,
        (
            "batch_size",
            "isl",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
            "window_size",
        ),
        "attn_dtype",
        _cache,
        ("kv_cache_dtype",),
    ),
    Format(
        EXPERTS,
        (
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
        ),
        "moe_dtype",
        lambda rows: rows["distribution"].astype(str),
        ("distribution",),
    ),
    Format(
        SCANS,
        (
            "batch_size",
            "seq_len",
            "n_groups",
            "d_state",
            "nheads",
            "head_dim",
            "chunk_size",
        ),
        "",
        _phase,
        ("op_name", "phase"),
    ),
    Format(
        SCANS,
        ("batch_size", "seq_len", *_HEADS, CHUNK),
        "",
        _phase,
        ("op_name", "phase"),
    ),
    Format(
        EXCHANGES,
        ("ranks", "num_tokens", "hidden_size", "topk", "num_experts", "sms"),
        "dtype",
        lambda rows: rows["op_name"].astype(str),
        ("op_name",),
    ),
)


def held_out(sizes: Iterable[int]) -> bool:
    """Whether no table has a shape: a fifth, by SHA-256 of "AxBxC", the same for all GPUs, formats and libraries."""
    digest = hashlib.sha256("x".join(map(str, sizes)).encode()).digest()
    return digest[0] % PARTS == 0


def read(path: Path) -> tuple[Family, pd.DataFrame]:
    """The family of a file's kernels (by its columns), and its rows.

    Columns: gpu, dtype (None where it is none of ours), source, kernel, variant, the family's sizes, and us.

    Raises
    ------
    InputError
        If the file is neither Parquet nor CSV, or lacks columns.
    """
    rows = _table(path)
    exchanges = exchange_rows.named(rows)
    rows = rows if exchanges is None else exchanges
    chosen = max(FORMATS, key=lambda each: sum(name in rows for name in each.named))
    if mistakes := [*_missing(path, rows, chosen)] or [*_wrong(path, rows, chosen)]:
        raise InputError(mistakes)
    return chosen.family, _ours(rows, chosen)


def _table(path: Path) -> pd.DataFrame:
    expected = "a Parquet or CSV file of kernels with their `latency` in ms"
    is_csv = ".csv" in path.suffixes
    try:
        return pd.read_csv(path) if is_csv else pd.read_parquet(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        found = str(error).partition("\n")[0]
        raise InputError(Mistake(str(path), "", found, expected)) from None


def _missing(path: Path, rows: pd.DataFrame, chosen: Format) -> Iterable[Mistake]:
    """Columns that a file lacks, one mistake each."""
    expected = f"columns {', '.join(chosen.named)} ({chosen.family.name})"
    for name in chosen.named:
        if name not in rows:
            yield Mistake(str(path), name, "no column", expected)
    if not any(set(names) <= set(rows) for names in STACK):
        wanted = "`source`, `file` or `framework` and `version`"
        yield Mistake(str(path), "source", "no column", wanted)


def _wrong(path: Path, rows: pd.DataFrame, chosen: Format) -> Iterable[Mistake]:
    """Columns with cells that are no sizes, or no times."""
    sizes = [name for name in chosen.columns if isinstance(name, str)]
    for name in (*sizes, "latency"):
        numbers = pd.to_numeric(rows[name], errors="coerce").astype("float64")
        low = rows[name].notna() & ~(numbers.between(0, MOST))
        if name == "latency":
            low |= ~(numbers > 0)
        if low.any():
            at = int(low.to_numpy().argmax())
            found = repr(str(rows[name].iloc[at])[:40])
            expected = "ms above 0" if name == "latency" else "a size"
            yield Mistake(f"{path}: row {at + 1}", name, found, expected)


def _ours(rows: pd.DataFrame, chosen: Format) -> pd.DataFrame:
    sizes: Mapping[str, object] = {
        size: _size(rows, column)
        for size, column in zip(chosen.family.sizes, chosen.columns, strict=True)
    }
    dtype = rows[chosen.dtype].map(DTYPES) if chosen.dtype else "bf16"
    return pd.DataFrame(
        {
            "gpu": rows["system"].map(GPUS),
            "dtype": dtype,
            "source": _source(rows),
            "kernel": rows["kernel_source"].astype(str),
            "variant": chosen.variant(rows),
            **sizes,
            "us": (pd.to_numeric(rows["latency"]) * 1e3).astype("float32"),
        }
    )


def _size(rows: pd.DataFrame, column: str | int) -> object:
    """Whole numbers; a window that is not there is 0."""
    return (
        column
        if isinstance(column, int)
        else pd.to_numeric(rows[column]).fillna(0).astype("int32")
    )


def _source(rows: pd.DataFrame) -> pd.Series:
    """ "trtllm/1.3.0rc20": the stack and its version."""
    for name in ("source", "file"):
        if name in rows:
            return rows[name].astype(str)
    return rows["framework"].str.lower() + "/" + rows["version"].astype(str)
