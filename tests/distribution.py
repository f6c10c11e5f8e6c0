"""Distributions that bring plug-ins, as installing them leaves them in a folder of the path."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The repository that docs/extending.md shows.
EXAMPLE = ROOT / "examples" / "plugins"


def install(project: str, sources: Path, folder: Path) -> Path:
    """Copies the packages beside a `pyproject.toml` into a folder, with metadata that has its entry points."""
    table = tomllib.loads(project)["project"]
    for package in sources.iterdir():
        if package.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, folder / package.name, ignore=ignored)
    groups = table.get("entry-points", {})
    lines = [
        line
        for group, entries in groups.items()
        for line in (
            f"[{group}]",
            *(f"{key} = {value}" for key, value in entries.items()),
        )
    ]
    name, version = table["name"], table["version"]
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def install_example(folder: Path) -> Path:
    """Installs the repository of the page into a folder."""
    project = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    return install(project, EXAMPLE, folder)
