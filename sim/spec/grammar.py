"""The grammar of scenario files as a JSON Schema."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, Literal

from prestep.sim import units
from prestep.sim.spec import jobs
from prestep.sim.spec.sections import SECTIONS
from prestep.sim.strict import has_keys, type_hints
from prestep.sim.tools import catalog

_EXAMPLES = {"bytes": "25 MiB", "bandwidth": "100 GB/s", "duration": "1 ms"}
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the scenario file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "prestep scenario",
        "type": "object",
        "additionalProperties": False,
        "required": ["cluster"],
        "anyOf": [{"required": ["model"]}, {"required": ["jobs"]}],
        "properties": {
            **{name: _section_schema(cls) for name, cls in SECTIONS.items()},
            "jobs": {"type": "array", "minItems": 1, "items": _job_schema()},
        },
    }


def _job_schema() -> dict[str, Any]:
    schema = _section_schema(jobs.Job)
    return schema | {
        "properties": schema["properties"]
        | {name: _section_schema(SECTIONS[name]) for name in jobs.own_sections()}
    }


def _section_schema(cls: type) -> dict[str, Any]:
    """JSON Schema of a section, of the same fields that `prestep.sim.strict` reads."""
    properties = {
        name: _key_schema(entry, type_hints(cls)[entry.name])
        | ({} if name == entry.name else {"deprecated": True})
        for entry in fields(cls)
        for name in (entry.name, *entry.metadata["was"])
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "description": cls.__doc__ or "",
        "properties": properties,
    }


#: How a default with a unit is written.
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "bytes": units.format_bytes,
    "duration": units.format_duration,
}
#: Limits of a key, and what JSON Schema calls them.
_LIMITS = {"low": "minimum", "most": "maximum", "above": "exclusiveMinimum"}


def _key_schema(entry: Field[Any], hint: Any) -> dict[str, Any]:
    metadata, default = entry.metadata, entry.default
    made: dict[str, Any] = {"description": metadata["doc"]}
    unit, kind = metadata["unit"], metadata["names"]
    if unit:
        made |= {"type": "string", "examples": [_EXAMPLES[unit]], "x-unit": unit}
    else:
        made |= {"enum": catalog.names(kind)} if kind else _type_schema(hint)
        limits = {name: metadata[limit] for limit, name in _LIMITS.items()}
        made |= {name: limit for name, limit in limits.items() if limit is not None}
    if default is not MISSING and default is not None:
        made["default"] = _WRITTEN.get(unit, lambda value: value)(default)
    return made


def _type_schema(hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin is typing.Union:
        return {"anyOf": [_type_schema(part) for part in typing.get_args(hint)]}
    if origin is tuple:
        return {"type": "array", "items": _type_schema(typing.get_args(hint)[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": {"type": "string"}}
    if has_keys(hint):
        return _section_schema(hint)
    return {"type": _JSON_TYPES[hint]}
