"""`python -m validation.fit.libraries gemm.parquet`: packaged tables of products as libraries run them.

Of every stack (TensorRT-LLM, vLLM, SGLang) the newest version of each GPU and format. Shapes held out
(`validation.formats.library_rows.held_out`) are in no table; one in eight of them is in the set `kernels`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from sim.costs.libraries import PRODUCTS
from validation.formats import library_rows
from validation.sets.sets import CASES

SAMPLE = 8
ROWS = CASES / "kernels" / "products.parquet"


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the newest version of each stack, by GPU and format; those of other GPUs and formats left out."""
    ours = rows.dropna(subset=["gpu", "dtype"])
    stack = ours["source"].str.partition("/")[0]
    version = ours["source"].map(_version)
    last = version.groupby([ours["gpu"], ours["dtype"], stack]).transform("max")
    return ours[version == last]


def _version(source: str) -> tuple[int, ...]:
    """ "trtllm/1.3.0rc20" as (1, 3, 0, 20)."""
    return tuple(map(int, re.findall(r"\d+", source.partition("/")[2])))


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that tables may have, and those held out."""
    shapes = rows[["m", "n", "k"]].drop_duplicates()
    out = shapes.apply(lambda shape: library_rows.held_out(*shape), axis=1)
    index = pd.MultiIndex.from_frame(shapes[out])
    held = pd.MultiIndex.from_frame(rows[["m", "n", "k"]]).isin(index)
    return rows[~held], rows[held]


def write(rows: pd.DataFrame, path: Path) -> None:
    """In an order and with digits that compress well."""
    columns = ["gpu", "dtype", "source", "kernel", "m", "n", "k"]
    ordered = rows.sort_values(columns)
    short = ordered.assign(us=ordered["us"].map(lambda us: float(f"{us:.4g}")))
    typed = short.astype({"us": "float32", **dict.fromkeys(columns[:4], "category")})
    typed.to_parquet(path, compression="zstd", compression_level=19, index=False)


def main() -> None:
    """Write the tables and the rows of the set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    rows = newest(library_rows.read(parser.parse_args().file))
    known, held = split(rows)
    write(known, PRODUCTS)
    write(held.iloc[::SAMPLE], ROWS)
    print(len(known), PRODUCTS, len(held.iloc[::SAMPLE]), ROWS)


if __name__ == "__main__":
    main()
