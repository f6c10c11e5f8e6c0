"""Names of Megatron-LM's arguments and the scenario keys that they are, from `names.toml`."""

from __future__ import annotations

import re
from typing import Any

from prestep.sim import files

_TABLES = files.beside(__file__)
NUMBERS, REALS, TEXTS, LATENT, COMPRESSED = (
    dict[str, str](_TABLES[name])
    for name in ("numbers", "reals", "texts", "latent", "compressed")
)
SWITCHES: dict[str, tuple[str, Any]] = {
    name: tuple(entry) for name, entry in _TABLES["switches"].items()
}
WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    name: tuple(entry) for name, entry in _TABLES["words"].items()
}
#: What Megatron takes for granted: keys of [model], of latent attention, of [megatron].
MODEL_DEFAULTS, LATENT_DEFAULTS, SWITCH_DEFAULTS = (
    dict[str, Any](_TABLES["defaults"][name])
    for name in ("model", "latent", "megatron")
)
#: Read beside each other.
OTHERS: tuple[str, ...] = tuple(_TABLES["others"])
#: No time of a step depends on these.
PASSED = re.compile(f"({'|'.join(_TABLES['passed'])})")
