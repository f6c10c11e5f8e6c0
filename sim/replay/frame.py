"""Replays for the Python interface: `prestep.replay`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from prestep import topologies
from prestep.sim.assignments import Changes, texts_of
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import as_json
from prestep.topologies.fabric import Fabric

if TYPE_CHECKING:
    import networkx as nx


def replay(
    files: Sequence[str | Path],
    cluster: str | Path | nx.Graph[Any] | Fabric = "",
    changes: Changes | None = None,
) -> pd.DataFrame:
    """Traces of a real run, replayed: `measured` and `simulated` seconds by rank and step, of which `step` is the name.

    With a cluster or changes, `simulated` is what the run would take there.
    """
    place = topologies.cluster_name(cluster) if cluster != "" else ""
    outcome = as_json(replay_files(files, cluster=place, changes=texts_of(changes)))
    rows = [
        (int(rank), step, measured, simulated)
        for rank, times in outcome["measured_step_time"].items()
        for step, measured in times.items()
        if (simulated := outcome["simulated_step_time"][rank][step]) is not None
    ]
    return pd.DataFrame(rows, columns=["rank", "step", "measured", "simulated"])
