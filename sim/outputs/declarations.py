"""Reads outputs that are declared in a TOML file beside the module that writes them.

A key's declaration is one line, in the words of `prestep.sim.outputs.words`:

    time = "number: s of one call"                   a description stands behind a colon
    low = "null or number: s"                        or null where there is nothing to say
    days = "maybe number <- job.days"                a key that is there only at times; where its value comes from
    shares = "names of number (0 to 1): by phase"    a table with any names, of values described in parentheses
    sizes = "list of size|creation"                  a list of what the file, or the caller, calls by these names
    "low, high" = "seconds"                          keys that are alike

A TOML table is a table of such keys. Its `is` declares the table itself: "table", "open_table", "interval", a class
whose fields it has too, or another table that it adds to. `titles` names commands whose whole output a declaration is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from prestep.sim import files
from prestep.sim.outputs import words
from prestep.sim.outputs.words import Schema, Source

_LINE = re.compile(
    r"(?P<prefixes>(?:(?:maybe|null or|list of|names of) )*)(?P<base>[\w|]+)"
    r"(?: \((?P<inner>[^()]*)\))?(?:: (?P<doc>.*?))?(?: <- (?P<of>[\w.]+))?"
)
_TABLES: dict[str, Callable[..., Schema]] = {
    "table": words.table,
    "open_table": words.open_table,
    "interval": words.interval,
}
_VALUES: dict[str, Callable[[str], Schema]] = {
    "number": words.number,
    "whole": words.whole,
    "text": words.text,
    "flag": words.flag,
    "anything": words.anything,
}
_SHARED = {
    "seconds": words.SECONDS,
    "breakdown": words.BREAKDOWN,
    "evidence": words.EVIDENCE,
    "grade": words.GRADE,
}


def schemas_beside(module: str, *classes: type, **names: Any) -> dict[str, Schema]:
    """Returns the declarations of the TOML file beside a module (`__file__`) by name.

    Parameters
    ----------
    classes : type
        Dataclasses and named tuples whose fields a table has.
    names : Schema or callable
        Schemas of other modules, and functions that find the value of a key.
    """
    content = files.beside(module)
    titles = content.pop("titles", {})
    known = {**_SHARED, **{cls.__name__: cls for cls in classes}}
    known |= {name: value for name, value in names.items() if not callable(value)}
    sources = {name: value for name, value in names.items() if callable(value)}
    reader = _Reader(content, known, sources)
    schemas = {name: reader.named(name) for name in content}
    whole = {name: words.titled(titles[name], schemas[name]) for name in titles}
    return schemas | whole


class _Reader:
    """Makes schemas of declarations, each once, when it is first asked for."""

    def __init__(
        self,
        content: Mapping[str, Any],
        known: dict[str, Any],
        sources: Mapping[str, Source],
    ) -> None:
        self.content, self.known, self.sources = content, known, sources

    def named(self, name: str) -> Any:
        """A schema, class or function by its name."""
        if name not in self.known:
            if name not in self.content:
                raise ValueError(f"{name}: neither a kind of value nor declared")
            self.known[name] = self.schema(self.content[name])
        return self.known[name]

    def schema(self, declaration: str | Mapping[str, Any]) -> Schema:
        own = {"is": declaration} if isinstance(declaration, str) else declaration
        line = own.get("is", "table")
        keys: dict[str, Schema] = {}
        for names, key in own.items():
            if names != "is":
                keys |= dict.fromkeys(names.split(", "), self.schema(key))
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no declaration of an output: {line!r}")
        prefixes = re.findall("maybe|null|list|names", match["prefixes"])
        schema = self._wrapped(prefixes, match, match["doc"] or "", keys)
        if match["of"] is None:
            return schema
        source = self.sources.get(match["of"], match["of"])
        return Schema(schema, schema.json, source, schema.optional)

    def _wrapped(
        self,
        prefixes: list[str],
        match: re.Match[str],
        doc: str,
        keys: dict[str, Schema],
    ) -> Schema:
        """The value behind these prefixes; the description is of the first list or names, else of the value."""
        if not prefixes:
            return self._base(match["base"], doc or match["inner"] or "", keys)
        first, *rest = prefixes
        if first in ("maybe", "null"):
            outer = words.maybe if first == "maybe" else words.or_null
            return outer(self._wrapped(rest, match, doc, keys))
        several = words.items if first == "list" else words.named
        return several(self._wrapped(rest, match, "", keys), doc)

    def _base(self, base: str, doc: str, keys: dict[str, Schema]) -> Schema:
        if "|" in base:
            return words.either(doc, *map(self.named, base.split("|")))
        if base in _VALUES:
            return _VALUES[base](doc)
        if base in _TABLES:
            return _TABLES[base](doc, **keys)
        shape = self.named(base)
        if isinstance(shape, type):
            return words.of_class(shape, doc, **keys)
        return words.more(shape, **keys) if keys else shape
