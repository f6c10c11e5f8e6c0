"""Rows of measurements as a file of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def written(tmp_path: Path, *records: Any) -> Path:
    """A file of one record a line."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path
