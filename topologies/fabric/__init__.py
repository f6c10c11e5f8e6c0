"""The checked cluster, and what families build it with."""

from topologies.fabric.fabric import Fabric

__all__ = ["Fabric"]
