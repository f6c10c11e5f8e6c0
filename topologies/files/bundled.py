"""Named clusters: those that come with prestep, and those of other distributions."""

from __future__ import annotations

from pathlib import Path

from prestep.sim import data_files

CLUSTERS = Path(__file__).parents[1] / "clusters"
#: How names begin of clusters that were given as graphs, which this process alone has.
GRAPH = "graph:"


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


def is_as_it_is(name_or_file: str) -> bool:
    """Whether a cluster has the hosts that it has: that of a graph or of another tool's file, not of a family."""
    return name_or_file.startswith(GRAPH) or Path(name_or_file).suffix not in (
        "",
        ".toml",
    )


def place_of(cluster: str) -> str:
    """The change that puts a scenario on a cluster: on a name, or on a file, which is relative to where we are.

    Examples
    --------
    >>> place_of("dgx-h100")
    'cluster.name=dgx-h100'
    >>> place_of("/tmp/mine.graphml")
    'cluster.file=/tmp/mine.graphml'
    """
    path = Path(cluster)
    is_file = not cluster.startswith(GRAPH) and (path.suffix or len(path.parts) > 1)
    return f"cluster.file={path.absolute()}" if is_file else f"cluster.name={cluster}"
