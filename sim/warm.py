"""Imports what a prediction needs, so that processes that are forked from one that has it begin at once."""

from __future__ import annotations

import numpy.ma
import pyarrow.parquet

import sim.predict
import sim.report
import sim.shadow
import sim.spec
import topologies.files.clusterfile
import topologies.policies
import workloads.mlp
import workloads.transformer
from sim import catalog, plugins

for _name in catalog.names("collectives"):
    if _name in plugins.discover("sim.collectives"):
        plugins.load("sim.collectives", _name)

__all__ = ["numpy", "pyarrow", "sim", "topologies", "workloads"]
