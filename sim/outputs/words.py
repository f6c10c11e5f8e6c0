"""The words that schemas of outputs are written in: each makes a piece of JSON Schema."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

Schema = dict[str, Any]
#: Marks a key that is there only at times; `table` takes the mark off.
OPTIONAL = "optional"


def number(doc: str = "") -> Schema:
    return _of("number", doc)


def whole(doc: str = "") -> Schema:
    return _of("integer", doc)


def text(doc: str = "") -> Schema:
    return _of("string", doc)


def flag(doc: str = "") -> Schema:
    return _of("boolean", doc)


def anything(doc: str = "") -> Schema:
    return {"description": doc} if doc else {}


def items(item: Schema, doc: str = "") -> Schema:
    """A list of such values."""
    return {**_of("array", doc), "items": item}


def named(item: Schema, doc: str = "") -> Schema:
    """A table with any names, of values that are all alike."""
    return {**_of("object", doc), "additionalProperties": item}


def table(doc: str = "", **keys: Schema) -> Schema:
    """A table with these keys, all of them required but those of `maybe`."""
    return {
        **_of("object", doc),
        "properties": {name: _without_mark(key) for name, key in keys.items()},
        "required": [name for name, key in keys.items() if not key.get(OPTIONAL)],
    }


def open_table(doc: str = "", **keys: Schema) -> Schema:
    """A table with these keys, and others that are not promised."""
    return {**table(doc, **keys), "additionalProperties": True}


def each(schema: Schema, *names: str) -> dict[str, Schema]:
    """Keys of a table that are alike."""
    return dict.fromkeys(names, schema)


def more(base: Schema, **keys: Schema) -> Schema:
    """A table with the keys of another and these."""
    added = table("", **keys)
    return {
        **base,
        "properties": {**base["properties"], **added["properties"]},
        "required": [*base["required"], *added["required"]],
    }


def of_class(cls: type, doc: str, **own: Schema) -> Schema:
    """A table with the fields of a dataclass or named tuple as its docstring has them; `own`: keys said otherwise.

    Examples
    --------
    >>> from prestep.sim.analysis.cost import Cost
    >>> of_class(Cost, "")["properties"]["step"]
    {'type': 'number', 'description': 'Of a step, all together.'}
    """
    docs = _described(inspect.getdoc(cls) or "")
    keys = {}
    for field, kind in _fields(cls).items():
        name, null = kind.removesuffix(" | None"), " | None" in kind
        if field not in own:
            key = _of(_TYPES[name], docs.get(field, ""))
            keys[field] = or_null(key) if null else key
    return table(doc, **keys, **own)


def _fields(cls: type) -> dict[str, str]:
    """Names of the fields of a dataclass or a named tuple, with their types as written."""
    if is_dataclass(cls):
        return {field.name: str(field.type) for field in fields(cls)}
    kinds = cls.__annotations__.items()
    return {name: getattr(kind, "__forward_arg__", str(kind)) for name, kind in kinds}


_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}


def _described(docstring: str) -> dict[str, str]:
    """What a docstring's Attributes say of each name."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Attributes\n----------\n")[2].splitlines():
        if line[:1].strip():
            names = line.partition(" : ")[0].split(", ")
        for name in names if line[:1] == " " else ():
            texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def or_null(schema: Schema) -> Schema:
    """That, or null where there is nothing to say."""
    return {**schema, "type": [schema["type"], "null"]}


def maybe(schema: Schema) -> Schema:
    """A key of a table that is there only at times."""
    return {**schema, OPTIONAL: True}


def either(doc: str, *shapes: Schema) -> Schema:
    """An object of one of these shapes."""
    return {"description": doc, "anyOf": list(shapes)}


def titled(title: str, schema: Schema) -> Schema:
    """The whole of an output, with the sentence that names its command."""
    return {"title": title, **schema}


def _of(kind: str, doc: str) -> Schema:
    return {"type": kind, "description": doc} if doc else {"type": kind}


def _without_mark(key: Schema) -> Schema:
    return {name: value for name, value in key.items() if name != OPTIONAL}


# Keys that many outputs have.
SECONDS = number("s")
BREAKDOWN = named(number("s"), "share of the step -> s; they sum to the step time")
EVIDENCE = named(number("0 to 1"), "grade -> share of the time that rests on it")
GRADE = text("measured, fitted, datasheet or guess")


def interval(doc: str, **own: Schema) -> Schema:
    """An interval of seconds, with what else it has or says otherwise."""
    keys = {
        "low": SECONDS,
        "high": SECONDS,
        "spread": number("standard deviation of the logarithm"),
        "nominal": number("probability: 0.9"),
    }
    return table(doc, **keys | own)
