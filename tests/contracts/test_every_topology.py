"""What every topology family and every bundled cluster keeps to, found by their files."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest

from prestep.sim import plugins
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.core.quantity import GRADES
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from tests.sample import together

FAMILIES = sorted(plugins.providers("prestep.topologies", "build"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_builds_a_checked_fabric_from_its_parameters(name: str) -> None:
    """`build(Params())` is a Fabric of that family, the same every time; Params is frozen and has a default for all."""
    family = plugins.load("prestep.topologies", name)
    assert (
        dataclasses.is_dataclass(family.Params)
        and family.Params.__dataclass_params__.frozen
    )  # type: ignore[attr-defined]
    assert len(inspect.signature(family.build).parameters) == 1
    first, second = (compile_graph(family.build(family.Params())) for _ in range(2))
    assert isinstance(first, Fabric) and first.family == name and first.gpus
    assert first.nodes == second.nodes
    for column in first.links.__dataclass_fields__:
        assert (getattr(first.links, column) == getattr(second.links, column)).all()
    assert len((family.build.__doc__ or "").splitlines()) > 5, (
        "the topology is drawn and its source named"
    )


@together("name", cluster_names())
def test_a_cluster_is_usable(name: str) -> None:
    """Positive bandwidths with grades, GPUs that reach each other both ways, and every number with its source."""
    fabric = load_cluster(name)
    links = fabric.links
    assert fabric.name == name and fabric.family in FAMILIES
    assert (
        (links.bandwidth > 0).all()
        and (links.latency >= 0).all()
        and np.isin(links.evidence, GRADES).all()
    )
    assert all(
        known.evidence in GRADES and known.source.strip()
        for known in fabric.facts.values()
    )
    assert fabric.facts["gpus"].value >= 1 and fabric.gpu_model
    first, last = fabric.gpus[0], fabric.gpus[-1]
    if first != last:
        for ends in ((first, last), (last, first)):
            route = fabric.route(*ends)
            assert links.src[route[0]] == ends[0] and links.dst[route[-1]] == ends[1]
            assert math.fsum(
                share for _, share in fabric.routes(*ends)
            ) == pytest.approx(1)
    assert fabric.host_of(first) in fabric.hosts
