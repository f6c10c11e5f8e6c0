"""What a recipe says: keys of a scenario with the place they come from, and all that was not taken over."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._rules import Rule, decides, nearest, typed, written

#: What only a shell could say.
COMMAND = re.compile(r"\$\(|`|\$\{")
#: Names in a note, before it says only how many more there are.
NAMED = 8
#: Where a key is said: a document, which knows the key's line, or a place in words.
Source = Document | str


@dataclass(frozen=True)
class Setting:
    """A key of a scenario that a recipe decides: `said` is the recipe's key, `where` its file and line."""

    key: str
    value: Any
    said: str
    where: str


def _place(source: Source, key: str) -> str:
    """File and line of a key."""
    return source.place(key) if isinstance(source, Document) else source


@dataclass
class Recipe:
    """What a recipe says; its reader fills it. Methods take the document that says a key, or its place, as `where`.

    Attributes
    ----------
    format : str
        The plug-in that reads it.
    where : str
        Its file.
    settings : dict
        What it decides, by key of the scenario; `asides` are those of a choice that was given up.
    assumed : list of str
        What it leaves open, and what was taken.
    unknown : list of str
        Its keys that are not understood, with place, whose words say nothing of a step (`_rules.decides`).
    passed : list of str
        Its keys that no time of a step depends on.
    lost : list of Mistake
        What changes a step and is not simulated.
    mistakes : list of Mistake
        What is wrong in it.
    gpus, hosts : int or None
        GPUs or hosts that it was written for; another cluster may be named.
    replicas : int or None
        Data-parallel replicas that it insists on.
    unless : dict of Mistake
        What is lost unless another place says a key of the scenario ("training.packed": how long documents are).
    needs : dict of Mistake
        Keys of a scenario that may not be said ("model": which model it is); see `lacking`.
    towers : bool
        Whether the reader was told of a part that sees or hears, of known size, which is left out.
    """

    format: str
    where: str
    settings: dict[str, Setting] = field(default_factory=dict)
    asides: dict[str, Setting] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    lost: list[Mistake] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    gpus: int | None = None
    hosts: int | None = None
    replicas: int | None = None
    unless: dict[str, Mistake] = field(default_factory=dict)
    needs: dict[str, Mistake] = field(default_factory=dict)
    towers: bool = False

    def tables(self) -> dict[str, dict[str, Any]]:
        """Its settings as tables of a scenario."""
        made: dict[str, dict[str, Any]] = {}
        for setting in self.settings.values():
            section, _, key = setting.key.partition(".")
            made.setdefault(section, {})[key] = setting.value
        return made

    def missed(self, said: Container[str] = ()) -> tuple[Mistake, ...]:
        """What is not simulated, where another place says those keys of the scenario."""
        return (
            *self.lost,
            *(one for key, one in self.unless.items() if key not in said),
        )

    def notes(self, lenient: bool = False, said: Container[str] = ()) -> list[str]:
        """What was assumed, what was not understood, and what is left out where that is allowed."""
        notes = [f"recipe ({self.format}): {text}" for text in self.assumed]
        if self.unknown:
            names = [text.partition(": ")[2] for text in self.unknown]
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            what = "recipe: not understood, taken not to change a step"
            notes.append(f"{what}: {', '.join(names[:NAMED])}{more}")
        for one in self.missed(said) if lenient else ():
            why = one.hint.partition("; --")[0]
            notes.append(f"recipe: not simulated: {one.key} = {one.found} ({why})")
        return notes

    @property
    def lacking(self) -> dict[str, Mistake]:
        """Keys of a scenario that it does not say, which another place may."""
        return {key: one for key, one in self.needs.items() if not self._has(key)}

    def set(self, key: str, value: Any, said: str = "", where: Source = "") -> None:
        """Decides a key of the scenario; what nobody said is the format's default."""
        place = _place(where, said) or self.where
        self.settings[key] = Setting(key, value, said or "default", place)

    def set_all(self, values: Mapping[str, Any]) -> None:
        """Decides several keys of the scenario that are defaults of the format."""
        for key, value in values.items():
            self.set(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """What was decided of a key."""
        setting = self.settings.get(key)
        return default if setting is None else setting.value

    def drop(self, *keys: str) -> None:
        """Takes keys back."""
        for key in keys:
            self.settings.pop(key, None)

    def assume(self, text: str) -> None:
        """Notes what was taken where the recipe is silent; once."""
        if text not in self.assumed:
            self.assumed.append(text)

    def leave_out_tower(self, weights: float) -> None:
        """Notes how much of a model is left out with the part that sees or hears: that many parameters."""
        self.towers = True
        size = f"{weights / 1e6:,.0f} million parameters beside the text model's"
        self.assume(f"the part that sees or hears is left out: {size}")

    def lose(
        self, where: Source, key: str, found: object, what: str, nearly: str = ""
    ) -> None:
        """Notes something that changes a step and is not simulated.

        A key that decides a degree, a size, a layout or a number format is not left out on request, which would be
        another job; but for those where `nearly` says what is taken in its place.
        """
        if decides(key, written(found).strip('"')) and not nearly:
            hint = f"{what}; it decides what a step computes, so --lenient does not leave it out"
            self.wrong(where, key, found, "what is simulated", hint)
            return
        instead = f" ({nearly})" if nearly else ""
        hint = f"{what}; --lenient predicts without it{instead}"
        lost = Mistake(_place(where, key), key, str(found), "what is simulated", hint)
        self.lost.append(lost)

    def strange(self, document: Document, name: str, names: Iterable[str]) -> None:
        """Notes a key that no rule has: a mistake where it decides what a step computes; `names` are known ones."""
        value = document.entries[name].value
        if not decides(name, value):
            self.unknown.append(f"{document.place(name)}: {name} = {shown(value)}")
            return
        close = nearest(name, list(names))
        guess = f"did you mean {close}? " if close else ""
        what = "it says a degree, a size, a layout or a number format"
        hint = f"{guess}{what}; take it out of the file and say it by --set"
        self.wrong(document, name, shown(value), "a key that is understood", hint)

    def lose_unless(
        self, ours: str, where: Source, key: str, found: object, what: str
    ) -> None:
        """Notes something that is not simulated unless the command line says a key of the scenario."""
        hint = f"{what}; --set {ours}=N says it, --lenient predicts without it"
        place = _place(where, key)
        self.unless[ours] = Mistake(place, key, str(found), "what is simulated", hint)

    def wrong(
        self, where: Source, key: str, found: object, expected: str, hint: str = ""
    ) -> None:
        """Notes a mistake."""
        place = _place(where, key)
        self.mistakes.append(Mistake(place, key, str(found), expected, hint))

    def need(
        self, key: str, where: Source, said: str, found: str, expected: str, hint: str
    ) -> None:
        """Notes that a key of the scenario is not known, which the command line may still say."""
        self.needs[key] = Mistake(_place(where, said), said, found, expected, hint)

    def _has(self, key: str) -> bool:
        """Whether a key, or the model, was decided."""
        if key == "model":
            return any(self.get(f"model.{one}") for one in ("name", "file", "kind"))
        return self.get(key) is not None

    def typed(
        self, document: Document, key: str, kind: str, default: Any = None
    ) -> Any:
        """The value of a recipe's key, or `default` where it is not said or wrong, which is noted."""
        value = document.get(key)
        if value is None:
            return default
        try:
            return typed(key, value, kind, document.place(key))
        except InputError as error:
            self.mistakes += error.mistakes
            return default

    def is_on(self, document: Document, key: str) -> bool:
        """Whether a switch is on; one that is not said is off."""
        return bool(self.typed(document, key, "truth", False))

    def count(self, document: Document, key: str, default: int | None = None) -> Any:
        """A number of things, at least one, or `default`."""
        value = self.typed(document, key, "whole", default)
        if value is not None and value < 1 and document.get(key) is not None:
            self.wrong(document, key, value, "at least 1")
            return default
        return value

    def read(self, document: Document, rules: Iterable[Rule]) -> None:
        """Applies rules to all keys of a document, in the rules' order."""
        listed = tuple(rules)
        known: set[str] = set()
        said = {name: entry.value for name, entry in document.entries.items()}
        for rule in listed:
            if not rule.counts(said):
                continue
            for name in document.entries:
                value = document.entries[name].value
                if (
                    name not in known
                    and rule.fits(name)
                    and not rule.swallows(name, value)
                ):
                    known.add(name)
                    self._apply(document, rule, name)
        names = [name.strip("*.") for rule in listed for name in rule.names]
        for name in document.entries:
            if name not in known:
                self.strange(document, name, names)

    def _apply(self, document: Document, rule: Rule, name: str) -> None:
        """What one rule makes of a key."""
        value = document.entries[name].value
        if rule.read:
            return
        if rule.ignored:
            self.passed.append(name)
            return
        if value is None and "null" not in rule.values:
            return
        if isinstance(value, str) and COMMAND.match(value):
            self._leave_to_shell(document, rule, name)
            return
        if document.kind == "python" and _own(name, value):
            return  # set to itself: as it was
        try:
            tables = rule.tables(name, value)
        except InputError as error:
            self.mistakes += [
                Mistake(document.place(name), name, one.found, one.expected, one.hint)
                for one in error.mistakes
            ]
            return
        self.take(tables, name, document)
        if rule.assumed and rule.unsaid(name, value):
            self.assume(f"{name} = {shown(value)}: {rule.assumed}")
        elif rule.unsaid(name, value):
            what = rule.lost or f"one of {', '.join([*rule.values, *rule.harmless])}"
            self.lose(document, name, shown(value), what, rule.nearly)

    def _leave_to_shell(self, document: Document, rule: Rule, name: str) -> None:
        """A value that only a shell could say: needed where it decides what a step computes."""
        value = document.entries[name].value
        if rule.key and decides(name, value):
            hint = f"--set {rule.key}=... says it"
            self.need(rule.key, document, name, shown(value), "a value", hint)
        else:
            self.strange(document, name, ())

    def take(
        self, tables: Mapping[str, Mapping[str, Any]], said: str, where: Source
    ) -> None:
        """Sets all keys of tables of a scenario."""
        for section, keys in tables.items():
            for key, value in keys.items():
                self.set(f"{section}.{key}", value, said, where)


def shown(value: Any) -> str:
    """A value for a message: short, and a text in quotes."""
    text = f'"{value}"' if isinstance(value, str) else written(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _own(name: str, value: Any) -> bool:
    """Whether a key is set to an attribute of the same name, whose value is not written out."""
    last = str(value).rpartition(".")
    return bool(last[1]) and last[2] == name.rpartition(".")[2]
