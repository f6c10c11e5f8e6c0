"""Kernels as libraries of serving stacks run them: measured by others, by GPU, number format and library.

`FAMILY.parquet` has the rows (`python -m lab.fit.libraries`); `prestep.sim.costs.library_table` reads between
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pandas as pd

from lab.formats.library_families import folder_of
from prestep.sim.costs.estimators.library import rows_of_library
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.library_families import Family
from prestep.sim.costs.library_table import Library, LibraryTable

WHO = ["gpu", "dtype", "source", "kernel", "variant"]


@cache
def libraries(family: Family) -> Mapping[Library, pd.DataFrame]:
    """Rows of a family's packaged table: its sizes and microseconds, by library."""
    rows = pd.read_parquet(folder_of(family) / f"{family.name}.parquet")
    groups = rows.groupby(WHO, observed=True)
    return {Library(*map(str, key)): frame for key, frame in groups}


def library_table(family: Family, library: Library, roofline: Roofline) -> LibraryTable:
    """The packaged table of a library (a key of `libraries`), on a GPU of these limits."""
    rows = rows_of_library(family, library, folder_of(family))
    return LibraryTable(family, *rows, roofline, library.dtype)
