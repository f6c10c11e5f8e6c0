"""Opens recorded programs (.capture) as scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.workloads.capture import recording

ENDINGS = (".capture",)


def opens(path: Path) -> dict[str, Any]:
    """The scenario of a recorded program: as many ranks as it was captured for."""
    world = recording.read(path).world
    return {
        "cluster": {"gpus": world},
        "model": {"file": path.name},
        "training": {"framework": "captured", "seq_len": 1, "micro_batch": 1},
        "parallel": {"dp": world, "data_parallel": "none"},
    }
