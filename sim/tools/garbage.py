"""How often a process that predicts looks for garbage."""

from __future__ import annotations

import gc

# Objects made between two searches for cycles of garbage: Python's 700 cost a sixth of a prediction, which has few, and
# 100,000 a twentieth of one with many events.
BETWEEN_COLLECTIONS = 200_000


def collect_rarely() -> None:
    """Lets a process search for cycles of garbage only once in many objects."""
    gc.set_threshold(BETWEEN_COLLECTIONS)
