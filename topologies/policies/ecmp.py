"""ECMP: every connection takes one of the equal-cost paths by a hash, and connections may meet on one cable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from topologies.fabric.ecmp import drawn
from topologies.policies import between_nics

if TYPE_CHECKING:
    from topologies.core.links import Floats, Ints
    from topologies.fabric import Fabric
    from topologies.policies import Paths, Routing


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """`routing.flows` connections between two NICs, hashed one by one with `routing.seed`, share the bytes equally.

    The hash is of the GPUs and the connection, as ports of the five-tuple differ by process. Cables between the same
    two switches are one link here: that flows meet on one of them is not seen.
    """

    def choose(first: str, last: str, paths: Paths) -> Paths:
        edges = np.cumsum([share for _, share in paths])
        edges /= edges[-1]
        keys = (
            f"{routing.seed}/{src}/{dst}/{first}/{last}/{flow}"
            for flow in range(routing.flows)
        )
        return [(paths[drawn(key, edges)][0], 1.0) for key in keys]

    return between_nics(fabric, src, dst, choose)
