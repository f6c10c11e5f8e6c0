"""What every `--json` prints, as JSON Schema: TOML files beside the modules that print it say it in few words.

Keys may be added in any version, so no schema forbids a key that it does not know. An output is an entry point of the
group `prestep.outputs`, by the command's words joined by dashes. It names a schema, or a function that makes one, whose
title names the command; of a module that it names alone, `SCHEMA`. What a section of a scenario adds to a step, or
predicts instead, is the `SCHEMA` of its module (`prestep.effects`, `prestep.runs`).
"""

from __future__ import annotations

from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, unknown

DIALECT = "https://json-schema.org/draft/2020-12/schema"
GROUP = "prestep.outputs"


def names() -> list[str]:
    """The outputs that there are."""
    return [name.replace("_", "-") for name in plugins.plugins_in(GROUP)]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an output.

    Raises
    ------
    InputError
        If there is no such output; close names are suggested. If the module that has it cannot be used.
    """
    if name not in names():
        raise InputError(unknown(__name__, "", name, names()))
    plugin = plugins.plugins_in(GROUP)[name.replace("-", "_")]
    attribute = plugin.entry.attribute if plugin.entry else ""
    keys = getattr(plugins.imported_plugin(plugin), attribute or "SCHEMA")
    return {"$schema": DIALECT, **(keys() if callable(keys) else keys)}
