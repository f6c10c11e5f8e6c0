"""Which routing policy a cluster's network follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """A policy and what it goes by.

    Attributes
    ----------
    policy
        A file of `topologies/policies`.
    seed
        Of the switches' hash (ecmp).
    flows
        Connections between two NICs, each hashed by itself (ecmp).
    pxn
        Whether a GPU may send by way of its neighbour on the receiver's rail (rail; NCCL_PXN_DISABLE).
    """

    policy: str = "adaptive"
    seed: int = 0
    flows: int = 1
    pxn: bool = True


ADAPTIVE = Routing()
