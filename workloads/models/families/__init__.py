"""Families of a Hugging Face config.json: how the keys of each are ours.

`families.toml` has them by model_type, with readers of this package's files for what a table cannot say; `refused.toml`
says what layers of others have that is not simulated. An installed distribution adds files with `FAMILIES`, or
`REFUSED`, by entry points of the group `prestep.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from prestep.sim import plugins, schema
from prestep.sim.errors import InputError, unknown
from prestep.sim.schema import Anything, Items, Named, Switch, Table, Text

PACKAGE = __name__
FILE, REFUSED = (
    Path(__file__).parent / f"{name}.toml" for name in ("families", "refused")
)
_ROW = Table(
    {
        **dict.fromkeys(("also", "lacks", "readers"), Items(Text())),
        **dict.fromkeys(("sizes", "taken", "switches", "refused"), Named(Text())),
        **dict.fromkeys(("has", "usual"), Named(Anything())),
        "routed": Items(Anything()),
        "strict": Switch(),
    },
    needed=("readers",),
)
#: What the sizes of a model are called in most files.
LLAMA = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
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
    others = (getattr(m, "FAMILIES", {}) for m in _modules())
    return _own() | {name: one for each in others for name, one in each.items()}


def refused() -> dict[str, str]:
    """Those that are not read, with what their layers have that is not simulated."""
    others = (getattr(m, "REFUSED", {}) for m in _modules())
    own = schema.read(REFUSED, Named(Text()))
    return own | {name: why for each in others for name, why in each.items()}


def _modules() -> Iterator[ModuleType]:
    """Files that other distributions add."""
    each = plugins.plugins_of(PACKAGE).values()
    return (plugins.imported_plugin(one) for one in each if one.entry is not None)


@cache
def _own() -> dict[str, Family]:
    """Those of `families.toml`."""
    rows = schema.rows(FILE, _ROW)
    each = {name: _family(row) for name, row in rows.items()}
    return {
        kind: each[name]
        for name, row in rows.items()
        for kind in (name, *row.get("also", ()))
    }


def _family(row: Config) -> Family:
    """What a row says, whose readers may be of this file or of others."""
    sizes = LLAMA | row.get("sizes", {})
    names = {
        ours: theirs
        for ours, theirs in sizes.items()
        if ours not in row.get("lacks", ())
    }
    readers = [_reader(name) for name in row["readers"]]
    if "routed" in row:
        readers.append(routed(*row["routed"]))
    return Family(
        names,
        partial(_read, row, readers),
        row.get("usual", {}),
        row.get("strict", False),
    )


def _reader(name: str) -> Reader:
    file, _, function = name.rpartition(".")
    reader: Reader = (
        plugins.load_function(PACKAGE, file, function) if file else globals()[function]
    )
    return reader


def _read(row: Config, readers: Sequence[Reader], config: Config, where: str) -> Config:
    """Our keys of a file: of its family's readers one after the other, and those that its row says."""
    for key, what in row.get("refused", {}).items():
        if config.get(key):
            expected = f"false: {what} are not modelled"
            raise InputError.of(where, key, "true", expected)
    made = Config()
    for reader in readers:
        made |= reader(config, where)
    for ours, theirs in row.get("taken", {}).items():
        made[ours] = config.get(theirs)
    for ours, theirs in row.get("switches", {}).items():
        made[ours] = bool(config.get(theirs))
    made |= row.get("has", {})
    return made


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


def experts_of(config: Config, experts: str, **others: str) -> Config:
    """Experts by the names of a family: their number, and how many a token sees; ``others``: ours to theirs."""
    names = {"experts": experts, "experts_per_token": "num_experts_per_tok", **others}
    return {ours: config.get(theirs) or None for ours, theirs in names.items()}


def routed(experts: str, shared: str = "", dense: int | None = None) -> Reader:
    """Experts by the names of a family; ``dense``: first layers without them where the file says nothing."""

    def read(config: Config, where: str) -> Config:
        others = {"shared_experts": shared} if shared else {}
        made = experts_of(config, experts, **others)
        made["moe_ffn"] = config.get("moe_intermediate_size")
        if dense is not None:
            made["dense_layers"] = dense_layers(config, where, dense)
        return made

    return read
