"""What `prestep schema` does."""

from __future__ import annotations

from sim.commands._shared import echo_json
from sim.spec.grammar import json_schema


def schema() -> None:
    echo_json(json_schema())
