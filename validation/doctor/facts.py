"""What causes ask of the cluster that a log should have run on."""

from __future__ import annotations

import numpy as np

from prestep.validation.doctor.cause import Change
from prestep.validation.doctor.sweep import Situation


def nics_of(here: Situation) -> tuple[str, ...]:
    """The NICs of the first host."""
    first = here.fabric.host_of(here.gpus[0])
    return tuple(
        nic for nic in here.fabric.nic_numbers if here.fabric.host_of(nic) == first
    )


def algorithms_of(here: Situation) -> set[str]:
    """What NCCL should run for any of the sizes."""
    return {size.expected.algo for size in here.sizes}


def slowest_way(here: Situation, kind: str) -> float:
    """Bytes/s of the narrowest link of a kind; infinite where there is none."""
    links = here.fabric.links
    rates = links.bandwidth[links.kind == kind]
    return float(np.min(rates)) if len(rates) else float("inf")


def capped_nics(here: Situation, rate: float, text: str) -> tuple[Change, ...]:
    """All NICs held to a rate; nothing where they are no faster anyway."""
    if not rate < slowest_way(here, "nic"):
        return ()
    return (Change(text, {"nic.bandwidth": f"{rate / 1e9:.6g} GB/s"}),)
