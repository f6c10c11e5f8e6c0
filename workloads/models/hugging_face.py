"""Hugging Face config.json -> the keys of a model.

Reads the families of `prestep.workloads.models.families`; one whose blocks differ is refused rather than approximated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.workloads.models import families
from prestep.workloads.models.families import Config, Family
from prestep.workloads.operation import words


def translate(config: Any, where: str, family: str = "") -> Config:
    """Keys of a model (as in models/*.toml) from a parsed config.json.

    ``family``: the model_type that it is read as, in place of its own.

    Raises
    ------
    InputError
        For a family that is not known here, and for every key that is missing, no whole number, or not understood.
    """
    if not isinstance(config, dict):
        raise InputError.of(where, "", type(config).__name__, "an object")
    known = families.families()
    own = family or str(config.get("model_type", "nothing"))
    if not family and own not in known:
        own = str(_text_of(config).get("model_type", own))
    if own not in known:
        raise InputError(_not_read(own, _text_of(config), where, known))
    reading = _reading(own, known[own], _text_of(config), where)
    expected = f"a key of {own}'s config.json"
    unread = reading.passed if known[own].strict else ()
    InputError.check(
        [Mistake(where, key, "a key that is not read", expected) for key in unread]
    )
    return reading.table


def _read(family: Family, config: Config, where: str) -> Config:
    """Keys of a model of that family."""
    usual, names = family.defaults.items(), family.names
    config = {k: v for k, v in usual if _spelt(config, k) not in config} | config
    mistakes = [
        mistake
        for key in names.values()
        for mistake in _not_whole(config.get(key), where, key)
    ]
    with InputError.collected(mistakes):
        rest = family.read(config, where)
    InputError.check(mistakes)
    table = {"kind": "transformer"} | {
        ours: config[theirs] for ours, theirs in names.items()
    }
    return table | {ours: value for ours, value in rest.items() if value is not None}


def _not_read(
    own: str, config: Config, where: str, known: dict[str, Family]
) -> Mistake:
    """Why a family is not read; of one that nobody has looked at, which family has its blocks."""
    why = families.refused().get(own)
    if why is not None:
        hint = f"{why}: not simulated"
        return Mistake(where, "model_type", f'"{own}"', "layers that are known", hint)
    mistake = unknown(where, "model_type", own, known)
    readings: list[_Reading] = []
    routed = any(value for key, value in config.items() if "expert" in key)
    for name, family in known.items():
        with suppress(InputError, LookupError, TypeError, ValueError):
            reading = _reading(name, family, config, "")
            if routed or not reading.table.get("experts"):  # none are made up
                readings.append(reading)
    nearest = max(readings, key=lambda one: one.fit, default=None)
    if nearest is None:
        return mistake
    blocks = ", ".join(_blocks(nearest.table))
    hint = f"by its keys it is {blocks}: --set model.family={nearest.name} reads it so"
    if nearest.passed:
        hint += f" without {', '.join(nearest.passed)}"
    return replace(mistake, hint=f"{mistake.hint}; {hint}" if mistake.hint else hint)


#: Parts of the names of keys that change no block: numbers that are computed with, tokens, checkpoints, generation.
_NO_BLOCKS = words(
    "architectures model_type auto_map dtype use_cache version name token init eps theta rope scaling dropout "
    "max_position aux loss quantization pretraining output logit group topk_method norm_topk scoring jitter label "
    "return_ chunk_size is_ problem sinkhorn rotary"
)


class _Read(Config):
    """A config.json that notes which of its keys are asked for; what is merged with it notes them, too.

    A key that the file spells differently is found as well.
    """

    def __init__(self, table: Config, keys: set[str]) -> None:
        super().__init__(table)
        self.keys_read = keys

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key := _spelt(self, key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key := _spelt(self, key))
        return super().get(key, default)

    def __or__(self, other: Any) -> _Read:  # type: ignore[override]
        return _Read({**self, **other}, self.keys_read)

    def __ror__(self, other: Any) -> _Read:  # type: ignore[override]
        return _Read({**other, **self}, self.keys_read)


class _Reading(NamedTuple):
    """A config.json read as one of a family: how many of its keys were read.

    ``beside``: of the family's defaults, and of all keys that it reads, how many the file lacks; how many of the
    model's keys say something; how many defaults the family has. ``passed``: keys of the file that were not read and
    may be about blocks.
    """

    name: str
    table: Config
    read: int
    beside: tuple[int, ...]
    passed: tuple[str, ...]

    @property
    def fit(self) -> tuple[int, ...]:
        """Fewest keys are passed over, then most are read, then fewest are made up, of the plainest family."""
        return -len(self.passed), self.read, *(-count for count in self.beside)


def _reading(name: str, family: Family, config: Config, where: str) -> _Reading:
    """A file read as one of a family."""
    read: set[str] = set()
    table = _read(family, _Read(config, read), where)
    passed = tuple(
        key
        for key in sorted(config.keys() - read)
        if config[key] and not any(part in key for part in _NO_BLOCKS)
    )
    used = len(config.keys() & read)
    usual = family.defaults.keys()
    marks = sum(bool(value) for key, value in table.items() if key != "gated")
    beside = len(usual - config.keys()), len(read) - used, marks, len(usual)
    return _Reading(name, table, used, beside, passed)


def _blocks(table: Config) -> Iterator[str]:
    """What a model's layers are made of, in words."""
    latent = "latent " if table.get("kv_lora_rank") else ""
    yield f"a transformer with {latent}attention of {table['heads']} heads"
    said = {
        "kv_heads": "{} of keys",
        "layers": "{} layers",
        "layer_pattern": "layers {:.12}...",
        "qk_norm": "norms of queries and keys",
        "window": "a window of {} tokens",
        "index_topk": "an indexer of {} keys",
        "norms": "norms {} parts",
        "parallel_parts": "attention and feed-forward beside each other",
        "experts": "{} experts",
        "shared_experts": "{} shared",
    }
    yield from (text.format(table[key]) for key, text in said.items() if table.get(key))
    yield "gated feed-forward" if table.get("gated", True) else "plain feed-forward"


def left_out(file: Path) -> tuple[str, ...]:
    """Parts of a config.json that are not simulated: towers for pictures or sound beside the text model."""
    try:
        config = files.json_of(files.read_text(file, "a config.json"))
    except (InputError, ValueError):
        return ()  # told of where the model is read
    if not isinstance(config, dict) or not isinstance(config.get("text_config"), dict):
        return ()
    return tuple(
        key
        for key, value in config.items()
        if key.endswith("_config") and key not in NO_TOWERS and isinstance(value, dict)
    )


#: Keys of a config.json that are about the text model, or about none.
NO_TOWERS = ("text_config", "quantization_config", "generation_config")


def _text_of(config: Config) -> Config:
    """The text model of one that sees pictures as well: those are left out; the whole says whether the head is tied."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    tied = "tie_word_embeddings"
    return inner | {tied: config[tied]} if tied in config else inner


#: Other spellings of the same key: BLOOM's checkpoints have both, transformers 5 saves the second of experts.
_SPELLINGS = {
    "hidden_size": ("n_embed",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "num_experts": ("num_local_experts",),
    "n_routed_experts": ("num_local_experts",),
    "num_local_experts": ("num_experts",),
}


def _spelt(config: Config, key: str) -> str:
    """The key as the file spells it."""
    return next(
        (name for name in (key, *_SPELLINGS.get(key, ())) if name in config), key
    )


def _not_whole(value: object, where: str, key: str) -> list[Mistake]:
    if type(value) is int and value > 0:
        return []
    found = "nothing" if value is None else repr(value)
    return [Mistake(where, key, found, "a whole number above 0")]
