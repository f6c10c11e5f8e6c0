"""Published times of products in the columns of aiconfigurator's samples (`kernels/gemm.parquet`), as rows of ours."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd
import pyarrow

from sim.errors import InputError, Mistake

COLUMNS = (
    "system",
    "source",
    "kernel_source",
    "gemm_dtype",
    "m",
    "n",
    "k",
    "latency",
)
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
PARTS = 5  # one of so many shapes is held out


def held_out(m: int, n: int, k: int) -> bool:
    """Whether no table has a shape: a fifth, by SHA-256 of "MxNxK", the same for all GPUs, formats and libraries."""
    digest = hashlib.sha256(f"{m}x{n}x{k}".encode()).digest()
    return digest[0] % PARTS == 0


def read(path: Path) -> pd.DataFrame:
    """Columns gpu, dtype (None where it is none of ours), source, kernel, m, n, k and us.

    Raises
    ------
    InputError
        If the file is no Parquet, or lacks columns.
    """
    expected = f"Parquet with the columns {', '.join(COLUMNS)}"
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        found = str(error).partition("\n")[0]
        raise InputError(Mistake(str(path), "", found, expected)) from None
    missing = [name for name in COLUMNS if name not in rows]
    if missing:
        wrong = [Mistake(str(path), name, "no column", expected) for name in missing]
        raise InputError(wrong)
    return pd.DataFrame(
        {
            "gpu": rows["system"].map(GPUS),
            "dtype": rows["gemm_dtype"].map(DTYPES),
            "source": rows["source"].astype(str),
            "kernel": rows["kernel_source"].astype(str),
            **{name: rows[name].astype("int32") for name in "mnk"},
            "us": (rows["latency"] * 1e3).astype("float32"),
        }
    )
