"""Hosts of files that describe them in part, or the network only: those of a bundled cluster, which is noted."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import networkx as nx

from prestep.sim.errors import did_you_mean
from prestep.topologies import host
from prestep.topologies.fabric.wiring import add_hosts
from prestep.topologies.files import host_models
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source

#: What stands in a host of which a file says nothing but its name.
USUAL = "dgx-h100"


def model_of(source: Source, host_name: str) -> HostModel:
    """The bundled host that stands in every host of the file: the one that the user names, or the usual one."""
    known = [model.name for model in host_models.models()]
    name = host_name or USUAL
    if name not in known:
        hint = did_you_mean(name, known)
        source.fail("host", f'"{name}"', f"one of {', '.join(known)}", hint)
    return host_models.named(name)


def add_assumed_host(
    graph: nx.MultiDiGraph[str], source: Source, name: str, model: HostModel, gpus: int
) -> list[str]:
    """A host with `gpus` GPUs and as many NICs; returns the NICs, in order."""
    source.assumed(
        "hosts",
        f"only named in the file; {model.name} inside each, with as many GPUs as NICs",
    )
    source.stands_on(model)
    nics = add_hosts(graph, name, _assumed(model.name, gpus))
    return [f"{name}/{nic}" for nic in nics]


@lru_cache
def _assumed(model: str, gpus: int) -> nx.MultiDiGraph[str]:
    params = host_models.named(model).params
    return host.pattern(replace(params, gpus=gpus, nics=gpus, nvmes=gpus))


def match(source: Source, gpu: str, gpus: int, nvlinks: int) -> HostModel | None:
    """The bundled host that a file describes, if there is one; what it adds to the file is noted."""
    model = host_models.match(gpu, gpus, nvlinks)
    if model is not None:
        source.stands_on(model)
        what = ", ".join(["rates of links", *sorted(model.host_facts())])
        source.assumed(
            "host",
            f"{gpus} {gpu} with {nvlinks} NVLinks each: {model.name}; its {what}",
        )
    return model
