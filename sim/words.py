"""What people call the keys of a scenario who come from another tool, from `words.toml`.

>>> key_of("tensor_model_parallel_size"), key_of("--num-layers"), key_of("nodes")
('parallel.tp', 'model.layers', 'cluster.hosts')
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

FILE = Path(__file__).with_name("words.toml")
# "tensor_model_parallel_size", "tensor_parallel_degree" and "tensor" are one word.
_ENDING = re.compile(r"(_parallel|_parallelism)?(_size|_degree)?$")
_BEGINNING = re.compile(r"^-*(num_|n_)?")


def key_of(word: str) -> str:
    """The dotted key that a word means; empty for a word that nobody uses for one."""
    spelt = word.strip().lower().replace("-", "_").strip("_")
    return _keys().get(spelt) or _keys().get(_short(spelt), "")


def _short(word: str) -> str:
    """A word without what says that it counts something."""
    return _ENDING.sub("", _BEGINNING.sub("", word))


@functools.cache  # asked for when something is wrong, and then for every mistake
def _keys() -> Mapping[str, str]:
    """Keys by all their words; the last part of a key is one of them."""
    # not at the top: `prestep --help` imports this file, and TOML is slow to import
    import tomllib

    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    keys: dict[str, str] = {}
    for key, words in table.items():
        keys |= dict.fromkeys((key.rpartition(".")[2], *words), key)
    return MappingProxyType(keys)
