"""Named clusters: those that come with prestep, and those of other distributions."""

from __future__ import annotations

from pathlib import Path

from prestep.sim import data_files

CLUSTERS = Path(__file__).parents[1] / "clusters"


def cluster_names() -> list[str]:
    """Names of the clusters in `topologies/clusters/*.toml` and in packages of `prestep.clusters`, sorted."""
    return list(data_files.files(CLUSTERS, "clusters"))


def cluster_file(name: str) -> Path:
    """Returns the file of a named cluster.

    Raises
    ------
    InputError
        If two distributions have clusters of that name.
    """
    return data_files.file(CLUSTERS, "clusters", name) or CLUSTERS / f"{name}.toml"
