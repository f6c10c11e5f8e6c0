"""Families of a Hugging Face config.json: how the keys of each are ours.

A file of this package has `FAMILIES`, by model_type; what layers of others have that is not simulated is in its
`REFUSED`, by model_type too. An installed distribution adds files by entry points of the group `prestep.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, unknown

PACKAGE = __name__
#: What the sizes of a model are called in most files.
LLAMA = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
#: The same of a hybrid, whose layers its pattern has.
HYBRID = {ours: theirs for ours, theirs in LLAMA.items() if ours != "layers"}
#: Kinds of layers in lists of them.
FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_new", "gelu_pytorch_tanh"), "gelu"),
    "relu": "relu",
}
Config = dict[str, Any]
#: Our keys from a file's, and its name.
Reader = Callable[[Config, str], Config]


@dataclass(frozen=True)
class Family:
    """How one model_type is read.

    Attributes
    ----------
    names
        Sizes that a file must have: our key and theirs.
    read
        Our other keys, from the file's and its name.
    defaults
        Keys that files leave out, as transformers has them (configuration_*.py).
    strict
        A key that is not read and may be about blocks is refused.
    """

    names: Mapping[str, str]
    read: Reader
    defaults: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


def families() -> dict[str, Family]:
    """All that are read, by model_type."""
    return {name: one for m in _modules() for name, one in m.FAMILIES.items()}


def refused() -> dict[str, str]:
    """Those that are not read, with what their layers have that is not simulated."""
    of_modules = (getattr(m, "REFUSED", {}) for m in _modules())
    return {name: why for each in of_modules for name, why in each.items()}


def _modules() -> Iterator[ModuleType]:
    return map(plugins.imported_plugin, plugins.plugins_of(PACKAGE).values())


def made_of(*readers: Reader, **keys: Any) -> Reader:
    """What readers make of a file, one after the other, and keys that all models of a family have.

    Examples
    --------
    >>> made_of(window, norms="behind")({"sliding_window": 8, "layer_types": [SLIDING]}, "")
    {'window': 8, 'window_every': None, 'norms': 'behind'}
    """

    def read(config: Config, where: str) -> Config:
        made = Config()
        for reader in readers:
            made |= reader(config, where)
        return made | keys

    return read


def activation(name: object, where: str, key: str) -> str:
    """Our name of an activation."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise InputError(unknown(where, key, str(name), _ACTIVATIONS))
    return _ACTIVATIONS[name]


def window(config: Config, where: str) -> Config:
    """A window of all layers but every n-th, from a list of their kinds or from n."""
    size, count = config.get("sliding_window"), config.get("num_hidden_layers", 0)
    pattern = config.get("sliding_window_pattern")
    kinds: list[str] = config.get("layer_types") or []
    if not kinds and isinstance(pattern, int):
        kinds = [FULL if (at + 1) % pattern == 0 else SLIDING for at in range(count)]
    if SLIDING not in kinds or not size:
        return {}
    every = kinds.index(FULL) + 1 if FULL in kinds else None
    wanted = [
        FULL if every and (at + 1) % every == 0 else SLIDING for at in range(len(kinds))
    ]
    if kinds != wanted:
        expected = f"{FULL} every n-th layer, {SLIDING} elsewhere"
        raise InputError.of(where, "layer_types", "another order", expected)
    return {"window": size, "window_every": every}


def dense_layers(config: Config, where: str, usual: int) -> int:
    """First layers without experts, by a list of their kinds or their number."""
    kinds = list(config.get("mlp_layer_types") or ())
    if not kinds:
        return int(config.get("first_k_dense_replace", usual) or 0)
    dense = kinds.count("dense")
    if kinds != ["dense"] * dense + ["sparse"] * (len(kinds) - dense):
        expected = "dense layers first, sparse ones behind them"
        raise InputError.of(where, "mlp_layer_types", "another order", expected)
    return dense


def layer_pattern(
    kinds: object, letters: Mapping[str, str], behind: str, where: str
) -> str:
    """Letters of all layers: of what mixes tokens, by a list of kinds, and of what is ``behind`` each, if anything."""
    if not isinstance(kinds, list) or {*map(str, kinds)} - letters.keys():
        expected = f"a list of {' and '.join(letters)}"
        raise InputError.of(where, "layer_types", repr(kinds)[:60], expected)
    pairs = zip(
        (letters[kind] for kind in kinds), behind or [""] * len(kinds), strict=True
    )
    return "".join(map("".join, pairs))


def as_wide(config: Config, key: str, width: int | None, where: str) -> int | None:
    """How many experts a shared one is as wide as."""
    inner = config.get(key) or 0
    if not width or inner % width:
        expected = f"a multiple of an expert's width, {width}"
        raise InputError.of(where, key, str(inner), expected)
    return int(inner // width) or None
