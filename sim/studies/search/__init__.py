"""The best layout of a training step for a model, a cluster and a batch: every valid one, ranked.

`axes` says which values are tried, `space` which combinations of them are valid (by the rules that refuse scenarios),
`bounds` which cannot fit or cannot be fast enough, `exploration` predicts the others, `explore` ranks them.
"""

from __future__ import annotations

from prestep.sim.studies.search.exploration import Options
from prestep.sim.studies.search.explore import Ranking, search

__all__ = ["Options", "Ranking", "search"]
