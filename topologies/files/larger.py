"""Which bundled clusters have room for more GPUs than one that was named: for the message that it has too few."""

from __future__ import annotations

import math
from typing import Any

from sim import files
from topologies.files.bundled import CLUSTERS, cluster_names

ONE_HOST = "host"


def larger(name: str | None, gpus: int) -> str:
    """What has room for `gpus`: clusters of the named one's hosts, where that is a single host; else nothing."""
    if name is None or name not in cluster_names():
        return ""
    keys = _keys(name)
    if keys["family"] != ONE_HOST:
        return ""
    several = [each for each in cluster_names() if _of_such_hosts(each, name)]
    if not several:
        return ""
    hosts = math.ceil(gpus / int(keys["gpus"]["value"]))
    names = " and ".join(several)
    return (
        f"{name} is one host; of such hosts are {names}, with cluster.hosts = {hosts}"
    )


def _keys(name: str) -> dict[str, Any]:
    """A cluster's keys over those of the one that it extends."""
    own = _own_keys(name)
    return {**_keys(own["extends"]), **own} if "extends" in own else own


def _own_keys(name: str) -> dict[str, Any]:
    return files.toml((CLUSTERS / f"{name}.toml").read_text(encoding="utf-8"))


def _of_such_hosts(name: str, host: str) -> bool:
    """Whether a cluster of several hosts is made of those of another file."""
    own = _own_keys(name)
    return own.get("extends") == host and _keys(name)["family"] != ONE_HOST
