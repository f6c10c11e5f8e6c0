"""A file of Megatron-LM's arguments as the scenario beneath a scenario: its model, training, layout and switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.workloads.models.model import ARGUMENTS


def with_arguments(
    mapping: Mapping[str, Any], folder: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """The tables, over those of a file of Megatron's arguments that [model] file may name (the model's stay in it)."""
    model = mapping.get("model")
    named = [
        item.partition("=")[2].strip().strip("\"'")
        for item in overrides
        if item.startswith("model.file=")
    ]
    file = (
        named[-1]
        if named
        else model.get("file")
        if isinstance(model, Mapping)
        else None
    )

    if (
        not isinstance(file, str)
        or Path(file).suffix not in ARGUMENTS
        or not (folder / file).is_file()
    ):
        return dict(mapping)

    from prestep.workloads.megatron.arguments import (
        sections_of,  # few models are such files
    )

    tables = dict(mapping)
    text = files.read_text(folder / file)
    for section, keys in sections_of(text, str(folder / file)).items():
        own = mapping.get(section, {})
        if section != "model" and isinstance(own, Mapping):
            tables[section] = {**keys, **own}
    return tables
