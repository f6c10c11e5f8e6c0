"""The checked cluster, and what families build it with."""

from topologies.fabric.fabric import Fabric, GpuChange

__all__ = ["Fabric", "GpuChange"]
