"""Communicators whose hosts have very different numbers of their GPUs: why a few more GPUs may cost much.

Every ring passes every host, so that the NICs of the smallest share carry as much as those of the largest; and NCCL's
ranks agree on as many channels as the smallest share has room for. 35 GPUs of an NVL72 rack and two of the next
exchange gradients at the speed of two NICs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prestep.sim.collectives.wires import paths
from prestep.sim.graph.opgraph import Comm

LOPSIDED = 2  # the largest share over the smallest from which on it is said
SMALL = 1 << 20  # bytes up to which latency counts, not NICs


def caveats(fabric: Any, gpus: Sequence[str], comms: Iterable[Comm]) -> tuple[str, ...]:
    """A sentence for every axis with such a communicator: of the most lopsided."""
    domains = paths.domains(fabric)
    met = {
        (c.axis, c.groups[0]) for c in comms if c.size > SMALL and len(c.groups[0]) > 2
    }
    worst: dict[str, tuple[int, int]] = {}
    for axis, ranks in sorted(met):
        shares = _shares(domains, [gpus[rank] for rank in ranks])
        if shares[0] >= LOPSIDED * shares[1]:
            worst[axis] = max(shares, worst.get(axis, shares), key=_ratio)
    return tuple(_said(axis, *shares) for axis, shares in worst.items())


def _shares(domains: Mapping[str, int], gpus: Sequence[str]) -> tuple[int, int]:
    """The most and the fewest GPUs that reach each other without the network."""
    counts = Counter(domains[gpu] for gpu in gpus).values()
    return max(counts), min(counts)


def _ratio(shares: tuple[int, int]) -> float:
    return shares[0] / shares[1]


def _said(axis: str, most: int, fewest: int) -> str:
    one = fewest == 1
    few = "1 GPU is" if one else f"{fewest} GPUs are"
    return (
        f"{axis}: of a communicator {most} GPUs are in one NVLink domain or host and {few} in another, through whose "
        f"NIC{'' if one else 's'} goes as much as through those of the {most}: sizes that fill both alike are faster"
    )
