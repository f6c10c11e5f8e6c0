"""A scenario's file as tables, before anything is checked; quick to import, so that a wrong name is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.spec import openers
from prestep.sim.tools import catalog

#: What recorded programs are called.
CAPTURE = ".capture"
#: Tables that scenarios have and no recipe has.
SCENARIO = {"cluster", "parallel", "jobs", "rl"}


def is_capture(path: Path) -> bool:
    """Whether a scenario's file is a recorded program."""
    return path.suffix == CAPTURE


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a scenario's file.

    Raises
    ------
    InputError
        If there is no such file, or it is no TOML.
    """
    if path.suffix.lower() != ".toml" and (opened := openers.opened(path)):
        return opened
    expected = "a scenario file (TOML), a recorded program (.capture) or a recipe"
    try:
        tables = files.toml(files.written_text(path))
        is_scenario = SCENARIO & tables.keys()
        return tables if is_scenario else openers.opened(path) or tables
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
