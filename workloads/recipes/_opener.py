"""Opens files of trainers as recipes, which a cluster makes complete (`prestep.sim.spec.recipes`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.workloads import recipes

ENDINGS = (".yaml", ".yml", ".json", ".sh", ".txt", ".args", ".py", ".toml")


def opens(path: Path) -> dict[str, Any] | None:
    """The file of a recipe, to be read with its cluster; None for TOML that no trainer writes."""
    if not path.exists():
        return None
    if path.suffix.lower() != ".toml":
        return {"recipe": recipes.document_of(path)}
    document = recipes.of_tables(path, files.toml(files.written_text(path)))
    return None if document is None else {"recipe": document}
