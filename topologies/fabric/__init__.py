"""The checked cluster, and what families build it with."""

from prestep.topologies.fabric.fabric import Fabric, GpuChange

__all__ = ["Fabric", "GpuChange"]
