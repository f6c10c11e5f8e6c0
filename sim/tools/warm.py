"""Imports what a prediction needs, so that processes that are forked from one that has it begin at once."""

from __future__ import annotations

import numpy.ma
import pyarrow.parquet

import sim.analysis.report
import sim.analysis.shadow_prices
import sim.predict
import sim.spec.load
import topologies.files.clusterfile
import topologies.policies
import workloads.torch.mlp
import workloads.torch.transformer
from sim import plugins
from sim.tools import catalog

for _name in catalog.names("collectives"):
    if _name in plugins.discover("sim.collectives.algorithms"):
        plugins.load("sim.collectives.algorithms", _name)

__all__ = ["numpy", "pyarrow", "sim", "topologies", "workloads"]
