"""Which rank runs on which GPU."""

from __future__ import annotations

from sim.errors import InputError, Mistake
from topologies.fabric import Fabric


def in_order(fabric: Fabric, ranks: int) -> tuple[str, ...]:
    """GPU of every rank: the cluster's own order, hosts filled one after the other, as torchrun does.

    Raises
    ------
    InputError
        If there are no ranks, or more than GPUs.
    """
    if not 1 <= ranks <= len(fabric.gpus):
        found, expected = f"{ranks} ranks", f"1 to {len(fabric.gpus)} ranks, one per GPU"
        raise InputError(Mistake(fabric.name, "placement", found, expected))
    return fabric.gpus[:ranks]
