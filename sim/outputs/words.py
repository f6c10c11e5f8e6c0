"""The words that outputs are declared in: each makes a piece of JSON Schema, and writes the JSON that it describes.

A table is declared once. `table(...)` of its keys is the schema, and `.json(value)` the JSON of an object: the value of
a key is the attribute of its name, or what `of` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

#: Where the value of a key comes from: an attribute ("job.days"), or a function of the object; "": the key's name.
Source = str | Callable[[Any], Any]
Write = Callable[[Any], Any]


class Schema(dict[str, Any]):
    """A piece of JSON Schema.

    Attributes
    ----------
    of : str or callable
        Where the value comes from, of a key of a table.
    json : callable
        The JSON of a value.
    optional : bool
        Whether it is a key that is there only at times: where its value is not None.
    """

    def __init__(
        self,
        keys: Mapping[str, Any],
        json: Write = lambda value: value,
        of: Source = "",
        optional: bool = False,
    ) -> None:
        super().__init__(keys)
        self.json, self.of, self.optional = json, of, optional

    def row(self, value: Any) -> dict[str, Any]:
        """The JSON of an object that is a table."""
        return dict(self.json(value))

    def value(self, whole: Any, name: str) -> Any:
        """The value of this key, called `name`, in a table that is made of an object or a mapping."""
        if callable(self.of):
            return self.of(whole)
        if isinstance(whole, Mapping):
            return whole.get(name) if self.optional else whole[name]
        return attrgetter(self.of or name)(whole)


def number(doc: str = "", of: Source = "") -> Schema:
    return _of("number", doc, of)


def whole(doc: str = "", of: Source = "") -> Schema:
    return _of("integer", doc, of)


def text(doc: str = "", of: Source = "") -> Schema:
    return _of("string", doc, of)


def flag(doc: str = "", of: Source = "") -> Schema:
    return _of("boolean", doc, of)


def anything(doc: str = "", of: Source = "") -> Schema:
    return Schema({"description": doc} if doc else {}, of=of)


def items(item: Schema, doc: str = "", of: Source = "") -> Schema:
    """A list of such values."""
    keys = {**_of("array", doc), "items": item}
    return Schema(keys, lambda values: [item.json(value) for value in values], of)


def named(item: Schema, doc: str = "", of: Source = "") -> Schema:
    """A table with any names, of values that are all alike."""
    return Schema(
        {**_of("object", doc), "additionalProperties": item},
        lambda values: {str(name): item.json(one) for name, one in values.items()},
        of,
    )


def table(doc: str = "", of: Source = "", /, **keys: Schema) -> Schema:
    """A table with these keys, all of them required but those of `maybe`.

    Examples
    --------
    >>> step = table("a step", time=number("s", of="step_time"), kind=text(of=lambda step: "training"))
    >>> step["required"]
    ['time', 'kind']
    >>> from types import SimpleNamespace
    >>> step.json(SimpleNamespace(step_time=0.5))
    {'time': 0.5, 'kind': 'training'}
    """

    def json(whole: Any) -> dict[str, Any]:
        values = {name: key.value(whole, name) for name, key in keys.items()}
        return {
            name: key.json(values[name])
            for name, key in keys.items()
            if not (key.optional and values[name] is None)
        }

    properties = {
        **_of("object", doc),
        "properties": dict(keys),
        "required": [name for name, key in keys.items() if not key.optional],
    }
    return Schema(properties, json, of)


def open_table(doc: str = "", **keys: Schema) -> Schema:
    """A table with these keys, and others that are not promised."""
    return Schema({**table(doc, **keys), "additionalProperties": True})


def more(base: Schema, of: Source = "", /, **keys: Schema) -> Schema:
    """A table with the keys of another and these."""
    added = table("", **keys)
    return Schema(
        {
            **base,
            "properties": {**base["properties"], **added["properties"]},
            "required": [*base["required"], *added["required"]],
        },
        lambda whole: {**base.json(whole), **added.json(whole)},
        of,
    )


def of_class(cls: type, doc: str, of: Source = "", /, **own: Schema) -> Schema:
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
        if field not in own:
            key = _of(_TYPES[kind.removesuffix(" | None")], docs.get(field, ""))
            keys[field] = or_null(key) if " | None" in kind else key
        else:
            keys[field] = own.pop(field)
    return table(doc, of, **keys, **own)


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
    return Schema(
        {**schema, "type": [schema["type"], "null"]},
        lambda value: None if value is None else schema.json(value),
        schema.of,
    )


def maybe(schema: Schema) -> Schema:
    """A key of a table that is there only at times."""
    return Schema(schema, schema.json, schema.of, optional=True)


def either(doc: str, *shapes: Schema) -> Schema:
    """An object of one of these shapes."""
    about = {"description": doc} if doc else {}
    return Schema({**about, "anyOf": list(shapes)})


def titled(title: str, schema: Schema) -> Schema:
    """The whole of an output, with the sentence that names its command."""
    return Schema({"title": title, **schema}, schema.json)


def _of(kind: str, doc: str, of: Source = "") -> Schema:
    return Schema({"type": kind, "description": doc} if doc else {"type": kind}, of=of)


# Keys that many outputs have.
SECONDS = number("s")
BREAKDOWN = named(number("s"), "share of the step -> s; they sum to the step time")
EVIDENCE = named(number("0 to 1"), "grade -> share of the time that rests on it")
GRADE = text("measured, fitted, datasheet or guess")


def interval(doc: str, of: Source = "", /, **own: Schema) -> Schema:
    """An interval of seconds, with what else it has or says otherwise."""
    keys = {
        "low": SECONDS,
        "high": SECONDS,
        "spread": number("standard deviation of the logarithm"),
        "nominal": number("probability: 0.9"),
    }
    return table(doc, of, **keys | own)
