"""The words that schemas of outputs are written in; each makes a piece of JSON Schema."""

from __future__ import annotations

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


def more(base: Schema, **keys: Schema) -> Schema:
    """A table with the keys of another and these."""
    added = table("", **keys)
    return {
        **base,
        "properties": {**base["properties"], **added["properties"]},
        "required": [*base["required"], *added["required"]],
    }


def or_null(schema: Schema) -> Schema:
    """That, or null where there is nothing to say."""
    return {**schema, "type": [schema["type"], "null"]}


def maybe(schema: Schema) -> Schema:
    """A key of a table that is there only at times."""
    return {**schema, OPTIONAL: True}


def either(doc: str, *shapes: Schema) -> Schema:
    """An object of one of these shapes."""
    return {"description": doc, "anyOf": list(shapes)}


def _of(kind: str, doc: str) -> Schema:
    return {"type": kind, "description": doc} if doc else {"type": kind}


def _without_mark(key: Schema) -> Schema:
    return {name: value for name, value in key.items() if name != OPTIONAL}
