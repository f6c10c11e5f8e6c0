"""The lowest versions that pyproject.toml allows, as pins for pip: `pip install $(python -m tests.lowest)`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
#: Extras that tests at the lower ends need beside the dependencies themselves.
EXTRAS = ("calibrate", "search")
TOOLS = (
    *("hypothesis", "pytest", "pytest-benchmark", "pytest-timeout", "pytest-xdist"),
    "types-PyYAML",
)


def pins() -> list[str]:
    """`name==version` for the dependencies and extras; the test tools as they are."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    return [*(f"{name}=={version}" for name, version in map(bound, wanted)), *TOOLS]


def bound(requirement: str) -> tuple[str, str]:
    """Name and lower end of a requirement; every one has one, and some an upper end after it."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<[\w.]+)?", requirement)
    if found is None:
        raise ValueError(f"{requirement}: no lower end (name>=version)")
    return found[1], found[2]


if __name__ == "__main__":
    print(" ".join(pins()))
