"""Hosts that are known: what a bundled cluster says of them stands in where a file of the same host says nothing.

A file of another tool, or a cluster file of a few keys, names a GPU, how many there are and how many NVLinks each has.
Where that is a host that comes with prestep, its rates, NVLink SHARP, memory and the rest are that host's: one home for
the facts of a host, whichever way it came in.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from prestep.topologies import host
from prestep.topologies.core import facts
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.wiring import CABLE
from prestep.topologies.files.bundled import cluster_names
from prestep.topologies.files.tables import HEADER, Reader, load_family, locate, merged

#: Facts of the network that a host is in, not of the host.
_OF_NETWORKS = frozenset(key for key in facts.KINDS if key.startswith("net_")) | {
    "sharp",
    "tcp",
    "token_bucket",
}


@dataclass(frozen=True)
class HostModel:
    """A bundled cluster as the description of one host: its family's parameters, and its facts."""

    name: str
    family: ModuleType
    params: Any
    facts: Mapping[str, Quantity]
    constants: str = ""
    kernels: str = ""

    @property
    def nvlinks(self) -> int:
        """Physical NVLinks of a GPU."""
        return _nvlinks(self.params)

    def host_facts(self) -> dict[str, Quantity]:
        """What its file says of the host, whatever its network."""
        typed = facts.KINDS.keys() - _OF_NETWORKS
        return {key: known for key, known in self.facts.items() if key in typed}

    def applied(self, fabric: Fabric) -> Fabric:
        """The cluster with the facts of the host under its own, and with the host's measured times."""
        facts = {**self.host_facts(), **fabric.facts}
        constants = fabric.constants or self.constants
        kernels = fabric.kernels or self.kernels
        return fabric.with_columns(facts=facts, constants=constants, kernels=kernels)


@lru_cache(maxsize=32)
def named(name: str) -> HostModel:
    """A bundled cluster as a host.

    Examples
    --------
    >>> named("dgx-h100").nvlinks
    18
    """
    table = merged(locate(name))
    family, reader = load_family(name, table), Reader(name)
    values = reader.params(table, typing.get_type_hints(family.Params))
    params = family.Params(**values)
    files = (str(table.get(key, "")) for key in ("nccl", "kernels"))
    return HostModel(name, family, params, reader.facts, *files)


def match(gpu: str, gpus: int, nvlinks: int) -> HostModel | None:
    """The bundled host with so many GPUs of a model, each with so many NVLinks; None if there is none.

    Examples
    --------
    >>> match("h100", 8, 18).name
    'dgx-h100'
    >>> match("h100", 4, 6) is None
    True
    """
    for model in models():
        params = model.params
        if (params.gpu, params.gpus, model.nvlinks) == (gpu, gpus, nvlinks):
            return model
    return None


def with_gpu(gpu: str) -> HostModel | None:
    """A bundled host with GPUs of a model, whatever their number."""
    return next((model for model in models() if model.params.gpu == gpu), None)


@lru_cache(maxsize=1)
def models() -> tuple[HostModel, ...]:
    """Bundled hosts of which others make clusters: their files name one (`several`)."""
    return tuple(_several())


def _several() -> Iterator[HostModel]:
    for name in cluster_names():
        own = merged(locate(name), extended=False)
        if "several" in own:
            yield named(name)


def _nvlinks(params: Any) -> int:
    """Physical NVLinks of a GPU of a host."""
    between = params.peer_nvlinks * (params.gpus - 1)
    return int(sum(params.nvlinks) + between)


def of_values(family: ModuleType, values: Mapping[str, Any]) -> HostModel | None:
    """The bundled host that the parameters of a cluster file describe.

    None for families whose hosts are their own, and for hosts that no bundled cluster has.
    """
    params_type = family.Params
    if not issubclass(params_type, host.Params):
        return None
    stated = {key: values[key] for key in ("gpu", "gpus") if values.get(key)}
    usual = {entry.name: entry.default for entry in dataclasses.fields(params_type)}
    gpu, gpus = ({**usual, **stated}[key] for key in ("gpu", "gpus"))
    of_links = [key for key in ("nvlinks", "peer_nvlinks") if key in values]
    for model in models():
        params = model.params
        same = all(getattr(params, key) == values[key] for key in of_links)
        if (params.gpu, params.gpus) == (gpu, gpus) and same:
            return model
    return None


def usual_links(family: ModuleType, values: Mapping[str, Any]) -> dict[str, LinkSpec]:
    """The links that a file's hosts and network have where it says nothing: the known host's, else the family's."""
    links = {
        entry.name: entry.default
        for entry in dataclasses.fields(family.Params)
        if isinstance(entry.default, LinkSpec)
    }
    model = of_values(family, values)
    of_host = {} if model is None else vars(model.params)
    return links | {key: of_host[key] for key in links if key in of_host}


def cables(family: ModuleType, values: Mapping[str, Any]) -> dict[str, LinkSpec]:
    """The cables between switches that a file leaves out: as fast as the hosts' ports, if it states those."""
    port = values.get("nic")
    if not isinstance(port, LinkSpec):
        return {}
    why = "as fast as the hosts' ports"
    rates = {
        part: Quantity(known.value, "guess", why)
        for part, known in (("bandwidth", port.bandwidth), ("raw", port.raw))
        if known is not None
    }
    return {
        entry.name: dataclasses.replace(CABLE, **rates)
        for entry in dataclasses.fields(family.Params)
        if entry.default == CABLE and entry.name not in values
    }


def filled(
    family: ModuleType, table: Mapping[str, Any], values: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Quantity]]:
    """What a cluster file of a known host leaves out: parameters and facts, and a note that names the host."""
    model = of_values(family, values)
    return ({}, {}) if model is None else _left_out(model, table)


def _left_out(
    model: HostModel, table: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Quantity]]:
    """Parameters and facts of a host that are not in the table of a file."""
    usual = {entry.name: entry.default for entry in dataclasses.fields(host.Params)}
    others = ((key, getattr(model.params, key)) for key in usual if key not in table)
    params = {key: value for key, value in others if value != usual[key]}
    facts = {key: one for key, one in model.host_facts().items() if key not in table}
    if not params and not facts:
        return {}, {}
    # A fact's parts are under "nvlink.bandwidth": they go with their parameter.
    parts = {
        key: one for key, one in model.facts.items() if key.partition(".")[0] in params
    }
    keys = ", ".join(sorted({*params, *facts} - set(HEADER)))
    why = f"not in the file; as in {model.name}: {keys}"
    note = {"assumed: host": Quantity(float(len(params) + len(facts)), "guess", why)}
    return params, {**parts, **facts, **note}
