"""What keys of a recipe mean for a scenario: rules in a TOML file beside each format, read strictly.

Entries are asked in the order of the file, those whose `names` (patterns) fit a key. In a recipe the first one decides;
of a published row all do, and later ones replace keys of earlier ones.

    key       a key of the scenario, by its section, that takes the value; `kind`: truth (default), whole, number, text,
              stages (Megatron's cut of a pipeline: a text, or a list of lists of parts), format (a number format),
              last (of a list of whole numbers)
    values    tables of a scenario by value, before `key`
    harmless  values that change nothing
    lost      what is not simulated of any other value
    nearly    what --lenient takes in its place; without it a key that decides what a step computes is refused
    assumed   what is taken of any other value that is not harmless, which the reader is told
    ignored   why it does not matter to the time of a step; a pattern does not cover a key that decides what a step
              computes by what is in place of its star (`decides`)
    read      what reads it together with other keys
    beside    values of other keys, one of which the recipe has: elsewhere the entry says nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import files, schema
from prestep.sim.errors import InputError, Mistake
from prestep.sim.schema import Anything, Items, Named, Table, Text
from prestep.workloads.megatron.pipeline_layout import spelled

WORDS = Path(__file__).with_name("_words.toml")
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
KINDS = ("truth", "whole", "number", "text", "stages", "format", "last")
#: Number formats by PyTorch's names; Transformer Engine keeps numbers of 8 bits as bytes.
FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
EXPECTED = {
    "truth": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "text": "a text",
    "last": "a list of whole numbers",
    "format": f"a number format, such as {', '.join(FORMATS.values())}",
    "stages": "a layout as a text, or a list of stages, each a list of embedding, decoder, mtp and loss",
}


#: Tables of a scenario by a key's value.
_BY_VALUE = Named(Anything())
SCHEMA = Table(
    {
        "rule": Items(
            Table(
                {
                    "names": Items(Text()),
                    "key": Text(),
                    "kind": Text(KINDS),
                    "values": _BY_VALUE,
                    "harmless": Items(Text()),
                    "lost": Text(),
                    "nearly": Text(),
                    "assumed": Text(),
                    "ignored": Text(),
                    "read": Text(),
                    "beside": _BY_VALUE,
                },
                needed=("names",),
            )
        )
    },
    needed=("rule",),
)


@dataclass(frozen=True)
class Rule:
    """What keys of a recipe mean: an entry of a rules file (see the module), with values in lower case."""

    names: tuple[str, ...]
    key: str = ""
    kind: str = "truth"
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    lost: str = ""
    nearly: str = ""
    assumed: str = ""
    ignored: str = ""
    read: str = ""
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fits(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def swallows(self, name: str, value: Any) -> bool:
        """Whether it would pass over a key that decides what a step computes, which its pattern does not name."""
        if not self.ignored or not decides(name, value):
            return False
        fitting = (one for one in self.names if fnmatchcase(name, one))
        return not any(decides(one.replace("*", "")) for one in fitting)

    def counts(self, said: Mapping[str, Any]) -> bool:
        """Whether it says anything of a recipe with these keys."""
        if not self.beside:
            return True
        pairs = self.beside.items()
        return any(
            key in said and written(said[key]) in values for key, values in pairs
        )

    def tables(self, name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Keys of the scenario that a recipe's key sets, by section.

        Raises
        ------
        InputError
            If the value is none that the key can have.
        """
        text = written(value)
        if self.key and text not in self.values:
            section, key = self.key.split(".")
            return {section: {key: typed(name, value, self.kind)}}
        return self.values.get(text, {})

    def unsaid(self, name: str, value: Any) -> str:
        """What the prediction leaves out because of a key; "" for nothing."""
        text = written(value)
        told = self.key or self.ignored or self.read
        if told or text in self.values or text in self.harmless:
            return ""
        why = self.lost or self.assumed or "unknown value"
        return f"{name}={value} not simulated: {why}"


def written(value: Any) -> str:
    """A value as rules write it: texts in lower case; true, false, null and empty as words."""
    if value is None:
        return "null"
    if value == "":
        return "empty"
    return str(value).lower()


def typed(
    name: str, value: Any, kind: str, where: str = ""
) -> bool | int | float | str:
    """A value of that kind; numbers and truths may be written as texts, as in shells.

    Raises
    ------
    InputError
        If it is none.
    """
    mistake = Mistake(
        where or name, name if where else "", f'"{value}"', EXPECTED[kind]
    )
    text = str(value).strip()
    if kind == "format" and text:
        name = text.lower().removeprefix("torch.")
        return FORMATS.get(name, name)
    if kind in ("text", "stages") and isinstance(value, str) and text:
        return text
    if kind == "stages":
        try:
            return spelled(value)
        except (KeyError, TypeError):
            raise InputError(mistake) from None
    if kind == "truth" and text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    if kind == "last":
        parts = re.findall(r"[^\s,\[\]]+", text)
        name, kind, text = name, "whole", parts[-1] if parts else ""
    if kind in ("whole", "number") and not isinstance(value, bool):
        try:
            number = float(text)
        except ValueError:
            raise InputError(mistake) from None
        if kind == "number":
            return number
        if number.is_integer() and abs(number) < 2**53:
            return int(number)
    raise InputError(mistake)


@lru_cache(maxsize=16)
def rules(file: Path) -> tuple[Rule, ...]:
    """All rules of a file, in its order.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    table = schema.read(file, SCHEMA, "what the keys of recipes mean")
    return tuple(_rule(entry) for entry in table["rule"])


def _rule(entry: Mapping[str, Any]) -> Rule:
    lists = {name: tuple(entry.get(name, ())) for name in ("names", "harmless")}
    lists["harmless"] = tuple(text.lower() for text in lists["harmless"])
    values = {str(k).lower(): v for k, v in entry.get("values", {}).items()}
    beside = {
        key: tuple(str(value).lower() for value in found)
        for key, found in entry.get("beside", {}).items()
    }
    return Rule(**{**entry, **lists, "values": values, "beside": beside})


#: Words of keys, by what they say of a step.
_WORDS = {
    name: frozenset(text.split())
    for name, text in files.toml(WORDS.read_text(encoding="utf-8")).items()
}
#: Values that leave a key off.
OFF = ("null", "none", "false", "empty", "", "off", "no")
#: Numbers of degrees that leave them off.
ALONE = ("0", "1", "-1")


def words_of(key: str) -> tuple[str, ...]:
    """The words of a key, in lower case.

    Examples
    --------
    >>> words_of("model.pipelineModelParallel_size")
    ('model', 'pipeline', 'model', 'parallel', 'size')
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key)
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


def decides(key: str, value: Any = True) -> bool:
    """Whether a key with that value sets a degree, a size, a layout or a number format of a step.

    Examples
    --------
    >>> decides("EXPERT_PARALLEL", 8), decides("EXPERT_PARALLEL", 1)
    (True, False)
    >>> decides("model.new_layout", "Et|tL"), decides("logger.log_layers", True)
    (True, False)
    >>> decides("dataset.seq_length", 4096), decides("eval_batch_size", 4)
    (True, False)
    >>> decides("split", "100,0,0"), decides("fp8_amax_history_len", 1024)
    (False, False)
    """
    text = str(value).strip().lower()
    words = set(words_of(key))
    if value is None or text in OFF:
        return False
    if words & _WORDS["checkpoints"]:
        return bool(words & _WORDS["again"])
    passing = words & _WORDS["passing"]
    if passing and not (passing <= {"dataset", "data"} and words & _WORDS["samples"]):
        return False
    degree = words & {"parallel", "parallelism", "degree"}
    return bool(words & _WORDS["deciding"]) and not (degree and text in ALONE)


def nearest(key: str, names: list[str]) -> str:
    """The known name that is most like a key, with what is before its last part left out; "" for none."""
    last = key.rpartition(".")[2]
    plain = {name.rpartition(".")[2].strip("*"): name for name in names}
    close = get_close_matches(last, [name for name in plain if name], n=1, cutoff=0.75)
    return close[0] if close else ""
