"""Hosts for files that describe the network only: a DGX H100 for every node name, which is a guess that is noted."""

from __future__ import annotations

from topologies.fabric.builder import FabricBuilder
from topologies.files.importers._text import Source
from topologies.host import Params, add_host


def add_assumed_host(
    builder: FabricBuilder, source: Source, name: str, gpus: int
) -> list[str]:
    """A host with `gpus` GPUs and as many NICs; returns the NICs, in order."""
    source.assumed(
        "hosts",
        "only named in the file; a DGX H100 inside each, with as many GPUs as NICs",
    )
    return add_host(builder, Params(gpus=gpus, nics=gpus, nvmes=gpus), name, f"{name}/")
