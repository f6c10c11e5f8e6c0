"""Imports what a prediction needs, so that processes that are forked from one that has it begin at once."""

from __future__ import annotations

import numpy.ma
import pyarrow.parquet

import prestep.sim.analysis.report
import prestep.sim.analysis.shadow_prices
import prestep.sim.predict
import prestep.sim.spec.load
import prestep.topologies.files.clusterfile
import prestep.topologies.policies
import prestep.workloads.torch.lower
from prestep.sim import plugins
from prestep.sim.tools import catalog

for _name in catalog.names("collectives"):
    if _name in plugins.discover("prestep.sim.collectives.algorithms"):
        plugins.load("prestep.sim.collectives.algorithms", _name)

__all__ = ["numpy", "prestep", "pyarrow"]
