"""What is wrong with [checkpoint] before anything is simulated; quick to import, as every scenario asks."""

from __future__ import annotations

from prestep.sim.errors import InputError, Mistake
from prestep.sim.storage.systems import load_system
from prestep.workloads.job.checkpoint import Checkpoint


def mistakes_of(c: Checkpoint, where: str) -> list[Mistake]:
    """The keys of [checkpoint] that do not fit each other or the storage."""
    try:
        system = load_system(c.storage or "nvme", where, "checkpoint.storage")
    except InputError as error:
        return list(error.mistakes)
    mistakes = []
    if c.gpudirect and not system.gpudirect:
        key, expected = "checkpoint.gpudirect", f"false with {system.name}"
        hint = "leave gpudirect out: bytes bounce through the host's memory"
        mistakes.append(Mistake(where, key, "true", expected, hint))
    if c.gpudirect and c.mode == "peer":
        key, expected = "checkpoint.gpudirect", "false with mode peer"
        mistakes.append(Mistake(where, key, "true", expected))
    if c.writers == "replica0" and c.mode in (None, "rank0"):
        key, expected = "checkpoint.writers", "mode sharded or async"
        hint = "rank 0 writes all"
        mistakes.append(Mistake(where, key, "replica0", expected, hint))
    return mistakes
