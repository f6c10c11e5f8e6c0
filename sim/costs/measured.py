"""A GPU as one machine measured it: the file and table that `prestep calibrate` writes, over a GPU that prestep knows.

::

    format = 1
    base = "h200"                       # facts and tables of what was not measured
    table = "my-host-gpu.parquet"       # measured kernels, beside this file
    [factor]                            # time here over time of the base's tables, by table
    gemm-nt-bf16 = { value = 1.012, low = 1.004, high = 1.019, rows = 140 }

The machine's rows correct what the base says (`prestep.sim.costs.corrected`): near a measured shape the measurement
counts, far
from any the base does, times the factor. Tables without rows or factor are the base's. A cluster file names such a file
with the key `kernels`. Without `table` it is a starting point. Instead of `base` it may state all facts of a GPU that
prestep does not have, as files in `sim/costs/hardware` do, with `like` for the one that lends tables; `base` may be the
name of such a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.costs import load_gpu
from prestep.sim.costs.facts import NEEDED, SCHEMA, gpu_facts
from prestep.sim.costs.gpu import Gpu, parts
from prestep.sim.costs.gpu_files import aten_of, laid_over
from prestep.sim.costs.tables import Row
from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.sim.schema import Named, Number, Table, Text

with lazily():
    from prestep.sim.costs import corrected

FORMAT, ABOVE_0 = 1, Number(above=True)
FACTS = tuple(SCHEMA.keys)
#: What such a file may say.
FILE = Table(
    {
        "format": Number(FORMAT, whole=True, high=FORMAT),
        "base": Text(),
        "table": Text(),
        "factor": Named(
            Table(dict.fromkeys(("value", "low", "high", "rows"), ABOVE_0), ("value",))
        ),
        **SCHEMA.keys,
    }
)
EXPECTED = "a GPU's file as `prestep calibrate MEASURED.zip -o CLUSTER.toml` writes it"


def gpu_of(fabric: Any) -> Gpu:
    """The GPU of a cluster: as its own file has it, else as prestep knows the model.

    Raises
    ------
    InputError
        With every mistake in the fabric's own file.
    """
    return load_file(fabric.kernels) if fabric.kernels else load_gpu(fabric.gpu_model)


@lru_cache(maxsize=8)
def load_file(path: str) -> Gpu:
    """The GPU of a file."""
    where = Path(path)
    table = _read(where)
    InputError.check([*_mistakes(path, table)])
    known, own = _known(where, table), _rows(where, table)
    factors = {
        name: float(entry["value"]) for name, entry in table.get("factor", {}).items()
    }
    return corrected.CorrectedGpu(known, own, factors) if own or factors else known


def _known(where: Path, table: Mapping[str, Any]) -> Gpu:
    """The GPU under a machine's own rows: one that prestep has, or one whose facts a file states."""
    stated = {key: table[key] for key in FACTS if key in table}
    if "memory" in stated:  # what the driver leaves of another size is not the base's
        stated.setdefault("usable", stated["memory"])
    base = table.get("base", "")
    if not base or base.endswith(".toml"):
        return _stated(where.parent / base if base else where, stated)
    facts, rows, like = parts(base, over=stated)
    return Gpu(base, facts, rows, like, aten_of(base))


def _stated(where: Path, over: Mapping[str, Any]) -> Gpu:
    """A GPU without tables: facts of a file, with others over them; the GPU that it is like lends the rest.

    Raises
    ------
    InputError
        With every fact that is lacking, or if there are tables in the file.
    """
    path, below = str(where), _read(where)
    mistakes = [*_mistakes(path, below)]
    if "base" in below or "table" in below:
        expected = "facts alone: a file of a GPU without base and table"
        mistakes.append(Mistake(path, "base", "a machine's own file", expected))
    stated = laid_over({key: below[key] for key in FACTS if key in below}, over)
    for key in (*NEEDED, "like"):
        if key not in stated:
            hint = HINTS.get(key, "sim/costs/hardware/h100.toml has one of each")
            mistakes.append(Mistake(path, key, "nothing", "a value", hint))
    InputError.check(mistakes)
    like = load_gpu(str(stated["like"]))
    return Gpu(like.name, gpu_facts(stated, ()), [], like)


HINTS = {
    "like": 'the known GPU that is most like it ("h100"), whose tables are lent, scaled by the limits of both'
}


def _rows(where: Path, table: Mapping[str, Any]) -> list[Row]:
    """The machine's own rows; none where the file names no table."""
    if "table" not in table:
        return []
    # pyarrow is slow to import, and most clusters have no measurements of their own
    from prestep.sim.costs.measured_rows import read_rows

    return read_rows(where.parent / table["table"])


def _read(path: Path) -> dict[str, Any]:
    try:
        return files.toml(files.written_text(path))
    except (OSError, ValueError) as error:
        raise InputError.of(str(path), "", str(error), EXPECTED) from None


def _mistakes(where: str, table: Mapping[str, Any]) -> Iterable[Mistake]:
    """Everything wrong with a file."""
    yield from FILE.mistakes(where, "", table)
    if "base" in table and "format" not in table:
        yield Mistake(where, "format", "nothing", f"{FORMAT}", EXPECTED)
    name = table.get("table")
    if isinstance(name, str) and Path(name).name != name:
        yield Mistake(where, "table", f'"{name}"', "a file beside this one")
