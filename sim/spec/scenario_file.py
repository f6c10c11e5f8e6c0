"""A scenario's file as tables, before anything is checked; quick to import, so that a wrong name is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.tools import catalog

#: What recorded programs are called.
CAPTURE = ".capture"
#: Endings of recipes that are no TOML (`workloads/recipes`).
RECIPES = (".yaml", ".yml", ".json", ".sh", ".txt", ".args", ".py")
#: Tables that scenarios have and no recipe has.
SCENARIO = {"cluster", "parallel", "jobs", "rl"}


def is_capture(path: Path) -> bool:
    """Whether a scenario's file is a recorded program."""
    return path.suffix == CAPTURE


def is_recipe(path: Path) -> bool:
    """Whether a scenario's file is a trainer's recipe."""
    return not is_capture(path) and "recipe" in tables_of(path)


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a scenario's file.

    Raises
    ------
    InputError
        If there is no such file, or it is no TOML.
    """
    if is_capture(path):
        return _captured(path)
    if path.suffix.lower() in RECIPES and path.exists():
        return _recipe(path)
    expected = "a scenario file (TOML), a recorded program (.capture) or a recipe"
    try:
        tables = files.toml(files.written_text(path))
        return tables if SCENARIO & tables.keys() else _of_trainer(path, tables)
    except FileNotFoundError:
        hints = (
            did_you_mean(path.name, catalog.names("scenarios")),
            "`prestep list scenarios`",
        )
        hint = " ".join(filter(None, hints))
        raise InputError(
            Mistake(str(path), "", "no such file", expected, hint)
        ) from None
    except OSError as error:
        raise InputError(
            Mistake(str(path), "", (error.strerror or str(error)).lower(), expected)
        ) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError(Mistake(str(path), "", str(error), expected)) from None


def _captured(path: Path) -> dict[str, Any]:
    """The scenario of a recorded program: as many ranks as it was captured for."""
    from prestep.workloads.capture import recording  # most scenarios are no recordings

    world = recording.read(path).world
    return {
        "cluster": {"gpus": world},
        "model": {"file": path.name},
        "training": {"framework": "captured", "seq_len": 1, "micro_batch": 1},
        "parallel": {"dp": world, "data_parallel": "none"},
    }


def _recipe(path: Path) -> dict[str, Any]:
    """The file of a recipe, to be read with the cluster that it runs on (`prestep.sim.spec.recipes`)."""
    from prestep.workloads import recipes  # most scenarios are none

    return {"recipe": recipes.document_of(path)}


def _of_trainer(path: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of a TOML file that may be a trainer's."""
    from prestep.workloads import recipes  # most scenarios are none

    document = recipes.of_tables(path, tables)
    return tables if document is None else {"recipe": document}
