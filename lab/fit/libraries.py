"""`python -m lab.fit.libraries gemm.parquet moe.parquet ...`: packaged tables of kernels as libraries run them.

Of every kernel of a stack (TensorRT-LLM, vLLM, SGLang) the newest version of each GPU and format. Shapes held out
(`lab.formats.library_rows.held_out`) are in no table; one in eight of their rows is in the set `kernels`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lab import CASES
from lab.formats import library_rows
from lab.formats.library_families import FAMILIES, folder_of
from lab.formats.packaged import WHO
from prestep.sim.costs.library_families import Family

SAMPLE = 8
ROWS = CASES / "kernels"


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the newest version of each kernel of a stack, by GPU and format; other GPUs and formats left out."""
    ours = rows.dropna(subset=["gpu", "dtype"])
    stack = ours["source"].str.partition("/")[0]
    versions = {source: _version(source) for source in ours["source"].unique()}
    order = sorted(versions, key=lambda source: versions[source])
    rank = {source: at for at, source in enumerate(order)}
    version = ours["source"].map(rank)
    others = [ours[name] for name in WHO if name != "source"]
    last = version.groupby([*others, stack]).transform("max")
    return ours[version == last]


def _version(source: str) -> tuple[int, ...]:
    """ "trtllm/1.3.0rc20" as (1, 3, 0, 20)."""
    return tuple(map(int, re.findall(r"\d+", source.partition("/")[2])))


def split(family: Family, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that tables may have, and those held out."""
    sizes = rows[list(family.sizes)]
    shapes = sizes.drop_duplicates()
    out = [library_rows.held_out(shape) for shape in shapes.to_numpy()]
    held = pd.MultiIndex.from_frame(sizes).isin(pd.MultiIndex.from_frame(shapes[out]))
    return rows[~held], rows[held]


def write(rows: pd.DataFrame, path: Path) -> None:
    """In an order and with digits that compress well."""
    columns = [str(name) for name in rows if name != "us"]
    ordered = rows.sort_values(columns)
    short = ordered.assign(us=ordered["us"].map(lambda us: float(f"{us:.4g}")))
    typed = short.astype({"us": "float32", **dict.fromkeys(WHO, "category")})
    typed.to_parquet(path, compression="zstd", compression_level=19, index=False)


def write_family(family: Family, rows: Iterable[pd.DataFrame]) -> None:
    """The table of a family and the rows of the set."""
    known, held = split(family, newest(pd.concat(rows)))
    sample = held.sort_values([*WHO, *family.sizes]).iloc[::SAMPLE]
    table, cases = (
        folder / f"{family.name}.parquet" for folder in (folder_of(family), ROWS)
    )
    write(known, table)
    write(sample, cases)
    print(len(known), table, len(sample), cases)


def main() -> None:
    """Write the tables of the families that the files have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    every = [library_rows.read(path) for path in parser.parse_args().files]
    for family in FAMILIES:
        if rows := [frame for of, frame in every if of is family]:
            write_family(family, rows)


if __name__ == "__main__":
    main()
