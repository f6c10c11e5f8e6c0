"""Adaptive: every packet takes the least loaded of the equal-cost paths, so all of them carry equal shares."""

from __future__ import annotations

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.router import summed


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """Equal shares by physical cable; packets may arrive out of order, which the NICs must bear.

    References
    ----------
    NVIDIA Quantum InfiniBand and Spectrum-X: adaptive routing per packet.
    """
    return summed(fabric.routes(src, dst))
