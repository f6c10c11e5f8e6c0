"""Where the clusters that come with prestep lie."""

from __future__ import annotations

from pathlib import Path

CLUSTERS = Path(__file__).parents[1] / "clusters"


def cluster_names() -> list[str]:
    """Names of the bundled clusters (`topologies/clusters/*.toml`), sorted."""
    return sorted(path.stem for path in CLUSTERS.glob("*.toml"))
