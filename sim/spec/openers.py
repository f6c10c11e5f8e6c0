"""Openers: files that are no scenario and become one, such as recorded programs and recipes of trainers.

An opener is a module under the entry point group `prestep.openers` with `ENDINGS`, the ends of names of its files, and
`opens(path)`, the tables of a scenario, or None for a file that is not of its kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim import plugins

GROUP = "prestep.openers"


def opened(path: Path) -> dict[str, Any] | None:
    """Returns the tables of a file by the first opener that knows it, other distributions' first; None without one.

    Raises
    ------
    InputError
        If an opener knows the file and cannot read it, or cannot be used.
    """
    openers = plugins.plugins_in(GROUP).values()
    for plugin in sorted(
        openers, key=lambda one: not (one.entry and one.entry.foreign)
    ):
        endings = plugins.outline_of(plugin).constants.get("ENDINGS", ())
        if plugin.mistakes or path.suffix.lower() in endings:
            tables = plugins.function_of(plugin, "opens")(path)
            if tables is not None:
                return dict(tables)
    return None
