"""The files of a GPU in `sim/costs/hardware`: facts, what was fitted, what others published, measured rows."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim import schema
from sim.costs import terms
from sim.costs.gemm import TileModel
from sim.costs.kinds import DTYPE_BYTES, KINDS
from sim.costs.power import Power
from sim.costs.tables import Row, read_rows
from sim.errors import InputError, Mistake, unknown
from sim.schema import Items, Number, Table, Text

HARDWARE = Path(__file__).parent / "hardware"
#: Generations of GPUs that NCCL treats differently, oldest first.
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
NEEDED = (
    "sms",
    "memory",
    "bandwidth",
    "l2",
    "l2_bandwidth",
    "gap",
    "floor",
    "peak",
    "efficiency",
)

_POSITIVE, _AT_LEAST_0, _COUNT = Number(above=True), Number(), Number(1, whole=True)
_LAYOUTS = (
    "nn",
    "nt",
    "tn",
    "padded",
    "small",
    "sorted",
)  # the second part of a table's name in [terms] and [parts]
_KINDS = (*KINDS, *(f"{kind}_{layout}" for kind in terms.LINEAR for layout in _LAYOUTS))
_CUDA = tuple(f"{major}" for major in range(9, 20))
#: What a file of a GPU, or one with fitted or published constants of it, may say.
SCHEMA = Table(
    {
        "like": Text(),
        "generation": Text(GENERATIONS),
        "sms": _COUNT,
        **dict.fromkeys(
            ("memory", "bandwidth", "l2", "l2_bandwidth", "stream", "floor"), _POSITIVE
        ),
        **dict.fromkeys(("crowded", "fused", "unaligned"), _POSITIVE),
        **dict.fromkeys(("gap", "spread"), _AT_LEAST_0),
        "peak": Table(dict.fromkeys(DTYPE_BYTES, _POSITIVE)),
        "efficiency": Table(
            dict.fromkeys(("flops", "bytes", *KINDS), _POSITIVE), ("flops", "bytes")
        ),
        "power": schema.numbers_of(Power),
        "sustained": Table(
            dict.fromkeys((*DTYPE_BYTES, "grouped", "attention"), _POSITIVE)
        ),
        "gemm": schema.numbers_of(TileModel),
        "products": Table(dict.fromkeys(DTYPE_BYTES, schema.numbers_of(TileModel))),
        "correction": Table(
            dict.fromkeys(
                ("default", *KINDS),
                Table(
                    dict.fromkeys(("length", "spread"), _POSITIVE), ("length", "spread")
                ),
            )
        ),
        "terms": Table(dict.fromkeys(_KINDS, Items(_AT_LEAST_0))),
        "adamw": Table(
            {"sparse": _POSITIVE, "launch": Items(Items(_AT_LEAST_0, 2))},
            ("sparse", "launch"),
        ),
        "parts": Table(dict.fromkeys(_KINDS, _COUNT)),
        "cuda": Table(dict.fromkeys(_CUDA, Items(Number(-math.inf), 2))),
    }
)


def names(folder: Path = HARDWARE) -> list[str]:
    """GPUs that have a file of facts, sorted."""
    parts = ("-fitted", "-nccl", "-published")
    return sorted(
        path.stem for path in folder.glob("*.toml") if not path.stem.endswith(parts)
    )


def facts_of(name: str, folder: Path = HARDWARE) -> dict[str, Any]:
    """Facts of a GPU, with those that were fitted and those that were published over them.

    Raises
    ------
    InputError
        If there is no such GPU, or with every mistake in its files.
    """
    path = folder / f"{name.lower()}.toml"
    if not path.is_file():
        raise InputError(unknown(str(folder), "gpu", name, names(folder)))
    beside = {
        part: folder / f"{name.lower()}-{part}.toml" for part in ("fitted", "published")
    }
    tables: dict[str, dict[str, Any]] = {}
    mistakes: list[Mistake] = []
    for part, file in {"": path, **beside}.items():
        try:
            tables[part] = schema.read(file, SCHEMA) if file.is_file() else {}
        except InputError as error:
            mistakes += error.mistakes
    if mistakes:
        raise InputError(mistakes)
    facts = tables[""] | tables["fitted"]
    needed = NEEDED if "like" in facts else (*NEEDED, "generation")
    lacking = [key for key in needed if key not in facts]
    if lacking:
        raise InputError(
            [Mistake(str(path), key, "nothing", _expected(key)) for key in lacking]
        )
    facts["guessed_load"] = list(facts.get("sustained", ()))
    for key, value in tables["published"].items():
        facts[key] = {**facts.get(key, {}), **value}
    return facts


def _expected(key: str) -> str:
    return f"one of {', '.join(GENERATIONS)}" if key == "generation" else "a value"


@lru_cache(maxsize=64)
def generation_of(name: str) -> str:
    """The generation of a GPU: what its file says, else that of the GPU it is like.

    Raises
    ------
    InputError
        If there is no such GPU: its NCCL would be anybody's guess.
    """
    facts = facts_of(name)
    return (
        str(facts["generation"])
        if "generation" in facts
        else generation_of(facts["like"])
    )


def rows_of(name: str, folder: Path = HARDWARE) -> list[Row]:
    """Measured rows of a GPU, its own and published ones; none where there are none."""
    tables = [
        folder / f"{name.lower()}-{part}.csv" for part in ("kernels", "published")
    ]
    return [row for path in tables if path.is_file() for row in read_rows(path)]
