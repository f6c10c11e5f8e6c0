"""The order in which a GPU's estimators are asked.

First come kernels that run as another one of the same GPU does, then what was measured on it, then a sibling GPU's
times, then models: tiles for products, the roofline for everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prestep.sim.costs.estimators import Estimator
from prestep.sim.costs.estimators.attention import InFp8, InOrder, Variant, WideHeads
from prestep.sim.costs.estimators.library import LibraryProducts
from prestep.sim.costs.estimators.operations import MeasuredOperations
from prestep.sim.costs.estimators.optimizer import FusedAdamw
from prestep.sim.costs.estimators.roofline import Limits, ShareOfPeak
from prestep.sim.costs.estimators.scans import Scans
from prestep.sim.costs.estimators.stand_ins import Batch, Stated
from prestep.sim.costs.estimators.table import OwnTable
from prestep.sim.costs.estimators.tiles import SlowerFormat, Tiles
from prestep.sim.extras import lazily

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

with lazily():
    from prestep.sim.costs.estimators import sibling

#: Kernels whose time follows that of others on the same GPU.
STAND_INS = (Stated, InOrder, Variant, Batch, InFp8, WideHeads)
TABLES = (
    *(FusedAdamw, SlowerFormat, MeasuredOperations, Scans),
    *(ShareOfPeak, LibraryProducts, OwnTable),
)
#: The last one answers every kernel.
MODELS = (Tiles, Limits)


def chain_of(gpu: Gpu) -> tuple[Estimator, ...]:
    """The estimators of a GPU in the order in which they are asked."""
    lenders = () if gpu.like is None else (sibling.Sibling,)
    estimators = (*STAND_INS, *TABLES, *lenders, *MODELS)
    return tuple(estimator(gpu) for estimator in estimators)
