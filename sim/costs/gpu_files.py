"""The files of a GPU in `sim/costs/hardware`: facts, what was fitted, what others published, measured rows."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import data_files, schema
from prestep.sim.costs import generation
from prestep.sim.costs.facts import NEEDED, SCHEMA, GpuFacts, gpu_facts
from prestep.sim.costs.generation import Generation
from prestep.sim.costs.spreads import widths
from prestep.sim.costs.tables import Row, read_rows
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.graph.kernel import BACKWARD, FUSED_ATTENTION, PRODUCTS

HARDWARE = Path(__file__).parent / "hardware"
#: Ends of names of the files beside a GPU's facts.
PARTS = ("-fitted", "-libraries", "-nccl", "-published")
#: Errors of measured steps that no constant was fitted to, by GPU, kind of model and number format
#: (`python -m lab.fit.step_errors`).
STEP_ERRORS = HARDWARE / "step-errors.csv"
LEAST = 20  # steps without which errors say nothing
#: The kernels that take most of the step of a kind of model; smaller ones could be far off unnoticed.
MODELS = {
    **dict.fromkeys(PRODUCTS, "transformer"),
    **{
        kind + way: "transformer"
        for kind in FUSED_ATTENTION.values()
        for way in ("", BACKWARD)
    },
    "aten _grouped_mm": "experts",
}


def names(folder: Path | None = None) -> list[str]:
    """GPUs that have a file of facts, sorted; of a folder, else of prestep's and those under `prestep.gpus`."""
    paths = folder.glob("*.toml") if folder else _files().values()
    return sorted(path.stem for path in paths if not path.stem.endswith(PARTS))


def _files() -> dict[str, Path]:
    return data_files.files(HARDWARE, "gpus")


def folder_of(name: str) -> Path:
    """Returns the folder with the files of a GPU; prestep's own for a GPU that there is not.

    Raises
    ------
    InputError
        If two distributions have GPUs of that name.
    """
    file = data_files.file(HARDWARE, "gpus", name.lower())
    return file.parent if file else HARDWARE


def facts_of(
    name: str, folder: Path | None = None, over: Mapping[str, Any] | None = None
) -> GpuFacts:
    """Facts of a GPU, under those that were fitted, published and measured in libraries; `over`: a machine's own.

    Raises
    ------
    InputError
        If there is no such GPU, or with every mistake in its files.
    """
    folder = folder or folder_of(name)
    stated, *measured = _tables_of(name, folder)
    table, measured_load = stated, set[str]()
    for part in measured:
        table = laid_over(table, part)
        measured_load.update(part.get("sustained", ()))
    # Load that only the GPU's own file states is a guess (its comment there says so).
    own_load = stated.get("sustained", ())
    guessed_load = tuple(key for key in own_load if key not in measured_load)
    facts = gpu_facts(laid_over(table, over or {}), guessed_load)
    # Steps say nothing of a GPU of other facts.
    own = folder == HARDWARE and not over
    return replace(facts, borne_out=borne_out(name.lower())) if own else facts


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Stated facts with others over them; of a table entry by entry."""
    merged = dict(below)
    for key, value in above.items():
        is_table = isinstance(value, Mapping)
        merged[key] = {**below.get(key, {}), **value} if is_table else value
    return merged


def _tables_of(name: str, folder: Path) -> list[dict[str, Any]]:
    """What a GPU's own files state, what was published of it, and what libraries take on it, checked."""
    path = folder / f"{name.lower()}.toml"
    if not path.is_file():
        raise InputError(unknown(str(folder), "gpu", name, {*names(folder), *names()}))
    tables: dict[str, dict[str, Any]] = {}
    mistakes: list[Mistake] = []
    for part in ("", "-fitted", "-published", "-libraries"):
        file = folder / f"{name.lower()}{part}.toml"
        with InputError.collected(mistakes):
            tables[part] = schema.read(file, SCHEMA) if file.is_file() else {}
    InputError.check(mistakes)
    _check_complete(path, tables[""] | tables["-fitted"])
    return list(tables.values())


def _check_complete(path: Path, stated: Mapping[str, Any]) -> None:
    """Raises what the files of a GPU lack; its generation may be that of the GPU it is like."""
    needed = NEEDED if "like" in stated else (*NEEDED, "generation")
    lacking = [key for key in needed if key not in stated]
    if lacking:
        raise InputError(
            [Mistake(str(path), key, "nothing", _expected(key)) for key in lacking]
        )


def _expected(key: str) -> str:
    known = ", ".join(generation.names())
    return f"one of {known}" if key == "generation" else "a value"


@lru_cache(maxsize=64)
def generation_of(name: str) -> Generation:
    """The generation of a GPU: what its file says, else that of the GPU it is like.

    Raises
    ------
    InputError
        If there is no such GPU: its NCCL would be anybody's guess.
    """
    if name.lower() not in names():
        hint = "describe it in sim/costs/hardware, with its generation, or name one that is like it"
        raise InputError(replace(unknown("cluster", "gpu", name, names()), hint=hint))
    facts = facts_of(name)
    made = facts.generation
    return generation.load(made) if made else generation_of(facts.like)


def known_capability(name: str) -> tuple[int, ...]:
    """Compute capability of a GPU, or of the one that its file says it is like; empty where neither says."""
    facts = facts_of(name)
    if facts.capability or not facts.like:
        return facts.capability
    return known_capability(facts.like)


def capability_of(name: str) -> tuple[int, int]:
    """Major and minor compute capability of a GPU.

    Raises
    ------
    InputError
        If there is no such GPU, or its file does not say.
    """
    if not (facts := known_capability(name)):
        expected = "the compute capability, such as [9, 0]"
        hint = "programs ask for it: state it in the GPU's file"
        raise InputError.of(name, "capability", "nothing", expected, hint)
    major, minor = facts
    return major, minor


def rows_of(name: str, folder: Path | None = None) -> list[Row]:
    """Measured rows of a GPU, its own and published ones; none where there are none."""
    tables = [
        (folder or folder_of(name)) / f"{name.lower()}-{part}.csv"
        for part in ("kernels", "published")
    ]
    return [row for path in tables if path.is_file() for row in read_rows(path)]


def aten_of(name: str, folder: Path | None = None) -> Path | None:
    """The file of ATen operations measured on a GPU; None where there is none."""
    path = (folder or folder_of(name)) / f"{name.lower()}-aten.csv"
    return path if path.is_file() else None


class Errors(NamedTuple):
    """Of measured steps of a GPU: how many, and the root mean square of predicted over measured less one."""

    steps: int
    error: float


@lru_cache(maxsize=1)
def errors_of_steps() -> dict[tuple[str, str, str], Errors]:
    """By GPU, kind of model and number format."""
    with STEP_ERRORS.open(newline="", encoding="utf-8") as file:
        return {
            (row["gpu"], row["model"], row["precision"]): Errors(
                int(row["steps"]), float(row["error"])
            )
            for row in csv.DictReader(file)
        }


def borne_out(gpu: str) -> frozenset[tuple[str, str]]:
    """Kinds and formats of kernels on a GPU whose lent times are fitted: steps that they decide are off by no more.

    A step has other errors too, so this asks for more than the kernel alone would.
    """
    limit = widths()["lent"]["fitted"]
    models = {
        (model, dtype)
        for (name, model, dtype), errors in errors_of_steps().items()
        if name == gpu and errors.steps >= LEAST and errors.error <= limit
    }
    return frozenset(
        (kind, dtype)
        for kind, decides in MODELS.items()
        for model, dtype in models
        if model == decides
    )
