"""Bundled clusters by what somebody needs: room for more GPUs than a named one has, or GPUs of a model."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.topologies.files.bundled import cluster_file, cluster_names

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


def several_hosts(name: str) -> str:
    """The cluster of several hosts of a bundled one that is a single host; "" where its file names none."""
    if name not in cluster_names():
        return ""
    return str(_own_keys(name).get("several", ""))


def with_gpu(gpu: str) -> str:
    """A bundled cluster with GPUs of a model: NVIDIA's DGX or rack if there is one, else the first by name; or ""."""
    names = cluster_names()
    usual = (name for name in (f"dgx-{gpu}", f"{gpu}-nvl72") if name in names)
    others = (name for name in names if _keys(name).get("gpu") == gpu)
    return next(chain(usual, others), "")


def gpu_models() -> list[str]:
    """Models of GPUs that bundled clusters have, sorted."""
    return sorted({str(_keys(name).get("gpu", "h100")) for name in cluster_names()})


def _keys(name: str) -> dict[str, Any]:
    """A cluster's keys over those of the one that it extends."""
    own = _own_keys(name)
    return {**_keys(own["extends"]), **own} if "extends" in own else own


def _own_keys(name: str) -> dict[str, Any]:
    return _read(cluster_file(name))


@cache
def _read(path: Path) -> dict[str, Any]:
    """The keys of a file that no process changes while others ask for it."""
    return files.toml(path.read_text(encoding="utf-8"))


def _of_such_hosts(name: str, host: str) -> bool:
    """Whether a cluster of several hosts is made of those of another file."""
    own = _own_keys(name)
    return own.get("extends") == host and _keys(name)["family"] != ONE_HOST
