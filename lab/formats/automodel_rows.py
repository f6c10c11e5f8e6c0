"""Rows of NeMo Automodel's performance summary as scenarios.

Columns are the summary's own (``lab/cases/automodel/rows.csv``); what its recipes say besides is in setups.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lab.formats.csv_rows import MeasuredStep, csv_rows
from lab.formats.published_columns import MOST, number, positive
from prestep.sim import schema
from prestep.sim.errors import InputError, Mistake
from prestep.sim.schema import Items, Named, Number, Table, Text

FOLDER = Path(__file__).parents[1] / "cases" / "automodel"
TIME = "Time per Global Step (s)"
SIZES = (
    "#GPUs",
    "GBS",
    "MBS",
    "LBS",
    "Seq Length",
    "TP",
    "PP",
    "CP",
    "EP",
    "VP",
    "FSDP",
)
COLUMNS = ("doc_tag", "section", "Model", *SIZES, TIME)
#: Sections of a scenario that a setup may fill.
SECTIONS = ("cluster", "training", "parallel", "megatron", "pytorch", "adapter")
_SECTION = schema.Anything()
_TABLES = dict.fromkeys(SECTIONS, _SECTION)
SETUP = Table(
    {
        **dict.fromkeys(
            ("model", "section", "release", "recipe", "name", "assumed", "refused"),
            Text(),
        ),
        **dict.fromkeys(("ep", "local_batch"), Number(low=1, whole=True)),
        **_TABLES,
    }
)
SCHEMA = Table(
    {
        "one_host": Text(),
        "hosts": Text(),
        "per_host": Number(low=1, whole=True),
        "common": Table(_TABLES),
        "release": Named(Table(_TABLES)),
        "setup": Items(SETUP),
    },
    ("one_host", "hosts", "per_host", "setup"),
)


@cache
def _setups() -> dict[str, Any]:
    return schema.read(FOLDER / "setups.toml", SCHEMA)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file.

    Raises
    ------
    InputError
        If it cannot be read, or lacks rows or columns.
    """
    return csv_rows(path, COLUMNS, "a CSV file of Automodel's performance summary")


def id_of(row: Mapping[str, str]) -> str:
    """A name for a row: what was trained, on how many GPUs, and the release that printed it."""
    part = "LoRA" if "LoRA" in row["section"] else "pre-training"
    return f"{row['Model']} {part} on {row['#GPUs']} GPUs, {row['doc_tag']}"


def parse_row(row: Mapping[str, str]) -> MeasuredStep:
    """A row as a scenario.

    Raises
    ------
    InputError
        Saying what the row lacks, or why it is not run.
    """
    where = id_of(row)
    setup = _setup_of(row, where)
    if "refused" in setup:
        raise InputError(Mistake(where, "", setup["refused"], "what is simulated"))
    sizes = {name: _size(row, name, where) for name in SIZES}
    if not sizes["EP"]:
        sizes["EP"] = setup.get("ep", 1)
    sizes["LBS"] = setup.get("local_batch", sizes["LBS"])
    tables = _tables(row, setup)
    tables["cluster"] |= _cluster(sizes["#GPUs"])
    tables["model"] = {"name": setup["name"]}
    tables["training"] |= _training(sizes, where)
    tables["parallel"] |= _parallel(sizes, where)
    part = "LoRA" if "LoRA" in row["section"] else "pre-training"
    measured = positive(row, TIME, where, "seconds")
    assumed = setup.get("assumed", "")
    return MeasuredStep(where, part, group_of(row), tables, measured, assumed)


def _setup_of(row: Mapping[str, str], where: str) -> dict[str, Any]:
    """The first setup whose model, section and release the row's begin with, contain and are among."""
    for setup in _setups()["setup"]:
        of_model = row["Model"].startswith(setup.get("model", ""))
        of_release = row["doc_tag"] in setup.get("release", row["doc_tag"]).split()
        if of_model and of_release and setup.get("section", "") in row["section"]:
            found: dict[str, Any] = setup
            return found
    expected = f"a setup in {FOLDER / 'setups.toml'}"
    raise InputError(Mistake(where, "Model", f'"{row["Model"]}"', expected))


def _size(row: Mapping[str, str], name: str, where: str) -> int:
    """A whole number of a cell; 0 where it has a dash."""
    text = row[name].strip()
    if text in ("", "-"):
        return 0
    try:
        value = number(text)
    except ValueError:
        value = 0.5
    if not 1 <= value <= MOST or value != int(value):
        raise InputError(Mistake(where, name, f'"{text}"', "a whole number, or -"))
    return int(value)


def _tables(row: Mapping[str, str], setup: Mapping[str, Any]) -> dict[str, Any]:
    """What all rows share, what holds for the release, and what the model's recipe says, in this order."""
    everything = _setups()
    release = everything.get("release", {}).get(row["doc_tag"], {})
    layers: Sequence[Mapping[str, Any]] = (everything.get("common", {}), release, setup)
    return {
        name: {k: v for layer in layers for k, v in layer.get(name, {}).items()}
        for name in SECTIONS
    }


def _cluster(gpus: int) -> dict[str, Any]:
    """One host where the GPUs fit in it, else as many as they need."""
    everything = _setups()
    per_host = everything["per_host"]
    if gpus <= per_host:
        part = {"gpus": gpus} if gpus < per_host else {}
        return {"name": everything["one_host"], **part}
    return {"name": everything["hosts"], "hosts": -(-gpus // per_host), "gpus": gpus}


def _replicas(sizes: Mapping[str, int], where: str) -> int:
    """Data-parallel replicas that the row's other axes leave."""
    others = max(1, sizes["TP"]) * max(1, sizes["PP"]) * max(1, sizes["CP"])
    if sizes["#GPUs"] % others:
        found = f"{sizes['#GPUs']} GPUs in parts of {others}"
        raise InputError(Mistake(where, "#GPUs", found, "a multiple of TP x PP x CP"))
    return sizes["#GPUs"] // others


def _training(sizes: Mapping[str, int], where: str) -> dict[str, Any]:
    """[training]: a pipeline runs a local batch at once, as often as the global batch needs."""
    dp, local = _replicas(sizes, where), max(sizes["LBS"], sizes["MBS"])
    runs = sizes["GBS"] // (local * dp)
    if not runs or runs * local * dp != sizes["GBS"] or local % sizes["MBS"]:
        found = f"GBS {sizes['GBS']} of LBS {local} on {dp} replicas"
        raise InputError(Mistake(where, "GBS", found, "a multiple of LBS x replicas"))
    training = {
        "seq_len": sizes["Seq Length"],
        "micro_batch": sizes["MBS"],
        "global_batch": sizes["GBS"],
    }
    if sizes["PP"] > 1:
        return training | {
            "microbatches": local // sizes["MBS"],
            "grad_accumulation": runs,
        }
    return training


def _parallel(sizes: Mapping[str, int], where: str) -> dict[str, Any]:
    """[parallel]; FSDP's shards lie over context-parallel ranks too, copies of them are left to HSDP."""
    dp, cp = _replicas(sizes, where), max(1, sizes["CP"])
    parallel: dict[str, Any] = {
        "dp": dp,
        "tp": max(1, sizes["TP"]),
        "pp": max(1, sizes["PP"]),
        "cp": cp,
        "ep": max(1, sizes["EP"]),
        "data_parallel": "fsdp" if dp * cp > 1 else "none",
        "uneven_stages": True,
    }
    if sizes["PP"] > 1 and sizes["VP"] > 1:
        parallel |= {"vpp": sizes["VP"], "schedule": "interleaved"}
    if sizes["FSDP"] and sizes["FSDP"] < dp:
        parallel["fsdp_shards"] = sizes["FSDP"] * cp
    return parallel


def group_of(row: Mapping[str, str]) -> str:
    """Rows that agree in this are one model on so many GPUs."""
    return re.sub(r"\s+", " ", f"{row['Model']}|{row['#GPUs']}").strip()
