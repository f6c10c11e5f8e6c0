"""What every `--json` prints, as JSON Schema: a file an output, found by its name.

A file says in `SCHEMA` what its command prints, in the words of `prestep.sim.outputs._words`; its docstring's first
line is
the title. Keys may be added in any version, so no schema forbids a key that it does not know.
"""

from __future__ import annotations

from typing import Any

from prestep.sim import plugins

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names() -> list[str]:
    """The outputs that there are: the command's words joined by dashes ("doctor-nccl")."""
    return sorted(name.replace("_", "-") for name in plugins.discover(__name__))


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an output.

    Raises
    ------
    InputError
        If there is no such output; close names are suggested.
    """
    module = plugins.load(__name__, name)
    title = (module.__doc__ or "").partition("\n")[0]
    return {"$schema": DIALECT, "title": title, **module.SCHEMA}
