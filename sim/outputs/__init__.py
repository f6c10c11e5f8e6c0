"""What every `--json` prints, as JSON Schema, in the words of `prestep.sim.outputs._words`.

Keys may be added in any version, so no schema forbids a key that it does not know. A distribution that adds a command
adds a module of the group `prestep.outputs`, whose `SCHEMA` says what the command prints and whose docstring is the
title.
"""

from __future__ import annotations

from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, unknown
from prestep.sim.outputs import _others, _run, _studies

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: By the command's words joined by dashes: what it says, and its schema.
OUTPUTS = {
    "capture-show": ("What a recording has", _others.CAPTURE_SHOW),
    "collective": ("A collective by size", _others.COLLECTIVE),
    "doctor": ("This environment", _others.DOCTOR),
    "doctor-nccl": ("Whether a log of NCCL is normal", _others.DOCTOR_NCCL),
    "goodput": ("Training time that counts, over weeks", _studies.GOODPUT),
    "kernel": ("One kernel on one GPU", _others.KERNEL),
    "list": ("What there is, by name", _others.LIST),
    "replay": ("A recorded run, replayed", _studies.REPLAY),
    "run": ("A predicted step", _run.RUN),
    "search": ("The fastest layouts that fit", _studies.SEARCH),
    "storage": ("A storage system by size of request", _others.STORAGE),
    "submit": ("Measurements that others send", _others.SUBMIT),
    "validate": ("Predictions beside measurements", _studies.VALIDATE),
    "whatif": ("A step with and without changes", _studies.WHATIF),
}
#: Words of a command that its title has behind the name.
ARGUMENTS = {"list": " KIND"}


def names() -> list[str]:
    """The outputs that there are."""
    others = (name.replace("_", "-") for name in plugins.discover(__name__))
    return sorted({*OUTPUTS, *others})


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an output.

    Raises
    ------
    InputError
        If there is no such output; close names are suggested.
    """
    if name not in names():
        raise InputError(unknown(__name__, "", name, names()))
    if name in OUTPUTS:
        text, keys = OUTPUTS[name]
        command = f"{name.replace('-', ' ')}{ARGUMENTS.get(name, '')}"
        title = f"{text}: `prestep {command} --json`."
    else:
        module = plugins.load(__name__, name)
        title, keys = (module.__doc__ or "").partition("\n")[0], module.SCHEMA
    return {"$schema": DIALECT, "title": title, **keys}
