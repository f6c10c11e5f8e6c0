"""A scenario's file as tables, before anything is checked; quick to import, so that a wrong name is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim import files, plugins
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.sim.spec import openers
from prestep.sim.tools import catalog

#: Tables that scenarios have and files of other tools do not, beside sections that ask for no training step.
SCENARIO = ("cluster", "parallel", "jobs")


def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a scenario's file.

    Raises
    ------
    InputError
        If there is no such file, or it is no TOML.
    """
    if path.suffix.lower() != ".toml" and (opened := openers.opened(path)):
        return opened
    *most, last = ("a scenario file (TOML)", *openers.files())
    expected = " or ".join(filter(None, (", ".join(most), last)))
    try:
        tables = files.toml(files.written_text(path))
        is_scenario = tables.keys() & {*SCENARIO, *plugins.plugins_in("prestep.runs")}
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
