"""The grammar of scenario files as a JSON Schema."""

from __future__ import annotations

from typing import Any

from sim import strict
from sim.spec import jobs
from sim.spec.sections import SECTIONS


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
            **{name: strict.schema(cls) for name, cls in SECTIONS.items()},
            "jobs": {"type": "array", "minItems": 1, "items": _job_schema()},
        },
    }


def _job_schema() -> dict[str, Any]:
    schema = strict.schema(jobs.Job)
    return schema | {
        "properties": schema["properties"]
        | {name: strict.schema(SECTIONS[name]) for name in jobs.OWN_SECTIONS}
    }
